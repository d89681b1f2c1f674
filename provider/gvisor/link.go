package gvisor

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// connectGateway creates the sandbox's network link and has its gateway started. It returns the
// sandbox's end.
func (sb *engineSandbox) connectGateway(cfg gatewayConfig) (*os.File, error) {
	gateway, inside, err := network.SocketPair()
	if err != nil {
		return nil, err
	}
	defer gateway.Close() // the reaper has a copy, for each gateway
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_ = inside.Close()
		return nil, fmt.Errorf("start a gateway: %w", err)
	}
	watch := os.NewFile(uintptr(pipe[0]), "watch")
	defer watch.Close()
	sb.gatewayLife = os.NewFile(uintptr(pipe[1]), "life")
	if err := sb.gateways.requestGateway(gatewayRequest{ID: sb.id, Config: cfg}, gateway, watch); err != nil {
		_ = inside.Close()
		return nil, err
	}
	return inside, nil
}

// startOnline starts the kernel with a network. gVisor itself would use the interfaces of the
// kernel process's network namespace, which has none: so the kernel gets the link first, and is
// then started in the only mode in which gVisor does not search for interfaces.
func startOnline(c *container.Container, conf *config.Config, link *os.File) error {
	conn, err := client.ConnectTo(c.Sandbox.ControlSocketPath)
	if err != nil {
		return fmt.Errorf("reach the kernel: %w", err)
	}
	defer conn.Close()
	args := linkArgs(link)
	if err := conn.Call(boot.ContMgrSetNetworkArgs, &args, nil); err != nil {
		return fmt.Errorf("give the kernel its network: %w", err)
	}
	configured := *conf
	configured.Network = config.NetworkHost // of this call alone: the kernel keeps the configuration it was created with
	return c.Start(&configured)
}

// linkName is the interface's name inside.
const linkName = "eth0"

// linkArgs describes the link to gVisor. It carries packets without frames: with two ends no
// link-layer address is needed.
func linkArgs(link *os.File) boot.CreateLinksAndRoutesArgs {
	a := network.LinkAddresses()
	return boot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{link}},
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: linkName, MTU: network.MTU,
			// The thread that reads a packet delivers it, and the one that creates a packet sends
			// it: a queue between them would only add another thread.
			NumChannels: 1, ProcessorsPerChannel: 1, QDisc: config.QDiscNone,
			TXChecksumOffload: true, RXChecksumOffload: true, // it is memory
			Addresses: []boot.IPWithPrefix{
				{Address: a.Box4.Addr().AsSlice(), PrefixLen: a.Box4.Bits()},
				{Address: a.Box6.Addr().AsSlice(), PrefixLen: a.Box6.Bits()},
			},
			Routes: []boot.Route{{Destination: ipNet(a.Box4)}, {Destination: ipNet(a.Box6)}},
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: linkName, Route: boot.Route{
			Destination: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Gateway: a.Gateway4.Addr().AsSlice(),
		}},
		Defaultv6Gateway: boot.DefaultRoute{Name: linkName, Route: boot.Route{
			Destination: ipNet(netip.MustParsePrefix("::/0")), Gateway: a.Gateway6.Addr().AsSlice(),
		}},
	}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
