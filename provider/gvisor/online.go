package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// connect makes the sandbox's link and has its gateway started. It returns the
// sandbox's end.
func (b *box) connect(cfg gatewayConfig) (*os.File, error) {
	gateway, inside, err := network.SocketPair()
	if err != nil {
		return nil, err
	}
	defer gateway.Close() // the reaper has it now, and gives it to each gateway
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		_ = inside.Close()
		return nil, fmt.Errorf("start a gateway: %w", err)
	}
	watch := os.NewFile(uintptr(pipe[0]), "watch")
	defer watch.Close()
	b.life = os.NewFile(uintptr(pipe[1]), "life")
	if err := b.gateways.start(gatewayRequest{ID: b.id, Config: cfg}, gateway, watch); err != nil {
		_ = inside.Close()
		return nil, err
	}
	return inside, nil
}

// startOnline starts the kernel with a network. gVisor itself would take the
// interfaces of the kernel process's network namespace, where there are none: so
// it is told of the link first, and then, in the one way there is, to look for no
// others.
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
	configured.Network = config.NetworkHost // of this call alone: the kernel goes by what it was made with
	return c.Start(&configured)
}

// linkName is the interface's name inside.
const linkName = "eth0"

// linkArgs describes the link to gVisor. It carries packets without any frame
// around them: with two ends there is nobody to address.
func linkArgs(link *os.File) boot.CreateLinksAndRoutesArgs {
	a := network.LinkAddresses()
	return boot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{link}},
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: linkName, MTU: network.MTU,
			// Who reads a packet delivers it, and who makes one sends it: a queue in
			// between would only be one more thread to wake.
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

// networkFor returns what the engine needs to make a sandbox with the policy; nil
// is offline.
func (p *Provider) networkFor(policy sandpit.NetworkPolicy) *gatewayConfig {
	if !policy.Online {
		return nil
	}
	return &gatewayConfig{Policy: policy.Clone(), Roots: p.cfg.Roots}
}

// grant tells the reaper of an engine what the dialer may open for a sandbox's gateway
// besides public addresses. fresh says that the gateway is still to be started.
func (p *Provider) grant(ctx context.Context, dir string, id sandpit.ID, n sandpit.NetworkPolicy, fresh bool) error {
	inside, err := policy.Ranges(n.Inside)
	if err != nil {
		return err
	}
	g := &dialer.Grant{Resolvers: p.cfg.Resolvers}
	for _, r := range inside {
		g.Inside = append(g.Inside, dialer.Range(r))
	}
	return sendGrant(ctx, dir, request{Op: opGrant, ID: id, Grant: g, Fresh: fresh})
}

// withdrawGrant removes the grant of a gateway that was not started. A grant that stays
// expires.
func withdrawGrant(ctx context.Context, dir string, id sandpit.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialerLimit)
	defer cancel()
	_ = sendGrant(ctx, dir, request{Op: opGrant, ID: id, Fresh: true})
}

func sendGrant(ctx context.Context, dir string, req request) error {
	_, f, err := callSocket(ctx, dir, grantsName, req)
	if f != nil {
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("grant addresses to the gateway: %w", err)
	}
	return nil
}

func validateNetwork(p sandpit.NetworkPolicy) error {
	_, err := policy.Parse(p)
	return err
}

var (
	_ sandpit.NetworkPolicer   = (*Instance)(nil)
	_ sandpit.NetworkLogger    = (*Instance)(nil)
	_ sandpit.NetworkInspector = (*Instance)(nil)
	_ sandpit.NetworkSecreter  = (*Instance)(nil)
)

// SetNetworkPolicy implements sandpit.NetworkPolicer.
func (i *Instance) SetNetworkPolicy(ctx context.Context, p sandpit.NetworkPolicy) error {
	if err := i.setNetworkPolicy(ctx, p); err != nil {
		return fmt.Errorf("set the network policy of sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) setNetworkPolicy(ctx context.Context, p sandpit.NetworkPolicy) error {
	if err := validateNetwork(p); err != nil {
		return err
	}
	rec, err := i.liveRecord()
	if err != nil {
		return err
	}
	if rec.Spec.Network.Online != p.Online {
		return sandpit.Errorf(sandpit.Conflict, "whether a sandbox is online is fixed when it is made")
	}
	if !p.Online {
		return nil // there are no rules offline
	}
	if err := i.replaceRules(ctx, rec.Spec.Network, p); err != nil {
		return err
	}
	if len(p.Headers) > 0 && len(rec.Spec.Network.Headers) == 0 {
		if err := i.trustGateway(ctx); err != nil {
			return err
		}
	}
	rec.Spec.Network = p.Clone()
	return rewriteRecord(i.engineDir(), rec)
}

// replaceRules has the dialer go by a policy first, and then the gateway.
func (i *Instance) replaceRules(ctx context.Context, old, now sandpit.NetworkPolicy) error {
	dir := i.engineDir()
	walled := true
	if _, err := os.Lstat(filepath.Join(dir, grantsName)); errors.Is(err, os.ErrNotExist) {
		walled = false // an engine of an earlier version, whose gateways dial themselves
	}
	if walled {
		if err := i.provider.grant(ctx, dir, i.id, now, false); err != nil {
			return err
		}
	}
	_, err := i.callGateway(ctx, request{Op: opPolicy, ID: i.id, Policy: &now})
	if err != nil && walled {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialerLimit)
		defer cancel()
		err = errors.Join(err, i.provider.grant(undo, dir, i.id, old, false))
	}
	return err
}

// NetworkLog implements sandpit.NetworkLogger. An offline sandbox has no decisions.
func (i *Instance) NetworkLog(ctx context.Context, after int64) ([]sandpit.NetworkDecision, error) {
	rec, err := i.liveRecord()
	if err != nil || !rec.Spec.Network.Online {
		return nil, err
	}
	var all []sandpit.NetworkDecision
	for {
		rep, err := i.callGateway(ctx, request{Op: opDecisions, ID: i.id, After: after})
		if err != nil {
			return nil, fmt.Errorf("read the network log of sandbox %s: %w", i.id, err)
		}
		all = append(all, rep.Decisions...)
		if len(rep.Decisions) < decisionsPerReply {
			return all, nil
		}
		after = rep.Decisions[len(rep.Decisions)-1].Seq
	}
}

// recall has a new gateway know the decisions of the one before.
func (i *Instance) recall(ctx context.Context, old []sandpit.NetworkDecision) error {
	for part := range slices.Chunk(old, decisionsPerReply) {
		if _, err := i.callGateway(ctx, request{Op: opRecall, ID: i.id, Decisions: part}); err != nil {
			return fmt.Errorf("bring the network log back: %w", err)
		}
	}
	return nil
}

// NetworkStats implements sandpit.NetworkInspector.
func (i *Instance) NetworkStats(ctx context.Context) (sandpit.NetworkStats, error) {
	rec, err := i.liveRecord()
	if err != nil || !rec.Spec.Network.Online {
		return sandpit.NetworkStats{}, err
	}
	return i.traffic(ctx)
}

func (i *Instance) traffic(ctx context.Context) (sandpit.NetworkStats, error) {
	rep, err := i.callGateway(ctx, request{Op: opTraffic, ID: i.id})
	if err == nil && rep.Traffic == nil {
		err = sandpit.Errorf(sandpit.Internal, "the gateway sent no figures")
	}
	if err != nil {
		return sandpit.NetworkStats{}, fmt.Errorf("measure the network of sandbox %s: %w", i.id, err)
	}
	return *rep.Traffic, nil
}

// TestNetwork implements sandpit.NetworkInspector.
func (i *Instance) TestNetwork(ctx context.Context, target string) ([]sandpit.NetworkDecision, error) {
	if err := i.wantOnline(); err != nil {
		return nil, err
	}
	rep, err := i.callGateway(ctx, request{Op: opExplain, ID: i.id, Target: target})
	if err != nil {
		return nil, fmt.Errorf("test the network of sandbox %s: %w", i.id, err)
	}
	return rep.Decisions, nil
}

// SetNetworkSecrets implements sandpit.NetworkSecreter.
func (i *Instance) SetNetworkSecrets(ctx context.Context, secrets map[string]string) error {
	if err := network.CheckSecrets(secrets); err != nil {
		return err
	}
	if err := i.wantOnline(); err != nil {
		return err
	}
	if _, err := i.callGateway(ctx, request{Op: opSecrets, ID: i.id, Secrets: secrets}); err != nil {
		return fmt.Errorf("set network secrets of sandbox %s: %w", i.id, err)
	}
	return nil
}

// wantOnline is a Conflict for an offline sandbox.
func (i *Instance) wantOnline() error {
	rec, err := i.liveRecord()
	if err == nil && !rec.Spec.Network.Online {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s is offline", i.id),
			"whether a sandbox is online is fixed when it is made")
	}
	return err
}

// liveRecord returns the sandbox's record. Gone: there is none any more. Conflict: it
// is stopped.
func (i *Instance) liveRecord() (record, error) {
	rec, err := readRecord(i.engineDir(), i.id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if away := i.provider.away(i.id); away != nil {
			return rec, away
		}
		err = sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", i.id)
	}
	return rec, err
}

// callGateway asks the sandbox's gateway. While that is started again after a
// break-down, the call waits.
func (i *Instance) callGateway(ctx context.Context, req request) (reply, error) {
	dir := i.engineDir()
	rep, f, err := callSocket(ctx, filepath.Join(dir, gatewaysName), string(i.id), req)
	if f != nil {
		_ = f.Close()
	}
	if sandpit.CodeOf(err) != sandpit.Gone {
		return rep, err
	}
	if _, statErr := os.Lstat(recordPath(dir, i.id)); statErr != nil {
		return rep, err
	}
	return rep, sandpit.Errorf(sandpit.Unavailable, "the sandbox's gateway did not answer: %w", err)
}
