package gvisor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
)

const resolvConf = "/etc/resolv.conf"

// dialerLimit is how long a dialer may take for an order.
const dialerLimit = 10 * time.Second

// dialerKeeper is the reaper's part: it starts a dialer with the first gateway, and again
// when it breaks down. It keeps both ends of each gateway's socket, so that neither side
// sees an end when the other is replaced.
type dialerKeeper struct {
	spawn func(*exec.Cmd) error

	mu       sync.Mutex
	process  *exec.Cmd     // nil: none runs
	control  *net.UnixConn // of the process
	gateways map[sandpit.ID]*dialedGateway
	pause    time.Duration // before the next start
}

// dialedGateway is what the dialer knows of a gateway.
type dialedGateway struct {
	grant dialer.Grant
	end   *os.File // the dialer's
}

func newDialerKeeper(spawn func(*exec.Cmd) error) *dialerKeeper {
	return &dialerKeeper{spawn: spawn, gateways: make(map[sandpit.ID]*dialedGateway), pause: restartFirst}
}

// addGateway has the dialer serve a gateway and returns the gateway's end of the socket,
// which the caller closes.
func (k *dialerKeeper) addGateway(id sandpit.ID, g dialer.Grant) (*os.File, error) {
	gateway, end, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	// So a gateway that takes no replies has few descriptors under way.
	_ = unix.SetsockoptInt(int(end.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 1) // the kernel has a least size
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gateways[id] = &dialedGateway{g, end}
	if k.process == nil {
		err = k.startDialer()
	} else {
		err = k.sendOrder(id, true)
	}
	if err != nil {
		delete(k.gateways, id)
		_ = end.Close()
		_ = gateway.Close()
		return nil, fmt.Errorf("start a dialer: %w", err)
	}
	return gateway, nil
}

// renewGateway has the dialer serve a restarted gateway, whatever its predecessor has done
// to the socket.
func (k *dialerKeeper) renewGateway(id sandpit.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gateways[id] != nil && k.process != nil {
		_ = k.sendOrder(id, true) // or the next dialer does
	}
}

// setInside replaces what a gateway may have opened inside. NotFound: there is no such
// gateway.
func (k *dialerKeeper) setInside(id sandpit.ID, inside []dialer.Range) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.gateways[id]
	if g == nil {
		return sandpit.Errorf(sandpit.NotFound, "sandbox %s has no gateway", id)
	}
	g.grant.Inside = inside
	if k.process == nil {
		return nil // the next one gets it before its first request
	}
	return k.sendOrder(id, false)
}

// removeGateway ends the service of a gateway.
func (k *dialerKeeper) removeGateway(id sandpit.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.gateways[id]
	if g == nil {
		return
	}
	delete(k.gateways, id)
	if k.process != nil {
		_ = k.sendOrder(id, false) // or it is killed, and the next one does not know it
	}
	_ = g.end.Close()
}

// sendOrder sends the dialer the state of a gateway, with its socket if that is new. A
// dialer that does not confirm is killed: its successor gets the state of all gateways.
func (k *dialerKeeper) sendOrder(id sandpit.ID, withSocket bool) error {
	o := dialerOrder{ID: id}
	var files []*os.File
	if g := k.gateways[id]; g != nil {
		o.Grant = &g.grant
		if withSocket {
			files = []*os.File{g.end}
		}
	}
	err := k.control.SetDeadline(time.Now().Add(dialerLimit))
	if err == nil {
		err = writePacket(k.control, o, files...)
	}
	if err == nil {
		err = k.readReply()
	}
	if sandpit.CodeOf(err) == sandpit.Invalid {
		return err // it is alive
	}
	if err != nil {
		_ = k.process.Process.Kill() // fails only if it has ended
	}
	return nil
}

func (k *dialerKeeper) readReply() error {
	var rep dialerReply
	files, err := readPacket(k.control, &rep)
	closeAll(files)
	if err != nil {
		return err
	}
	return rep.Error.err()
}

// startDialer starts a process and sends it the state of all gateways.
func (k *dialerKeeper) startDialer() error {
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer theirs.Close()
	control, err := unixConn(ours)
	if err != nil {
		return err
	}
	cmd := dialerCommand(theirs)
	if err := k.spawn(cmd); err != nil {
		_ = control.Close()
		return explainNamespaceError(err)
	}
	k.process, k.control = cmd, control
	go k.superviseDialer(cmd, control, time.Now())
	if err = control.SetDeadline(time.Now().Add(dialerLimit)); err == nil {
		err = k.readReply()
	}
	if err != nil {
		_ = cmd.Process.Kill() // fails only if it has ended
		return err
	}
	for id := range k.gateways {
		if err := k.sendOrder(id, true); err != nil {
			return err
		}
	}
	return nil
}

// superviseDialer waits for the end of a process and starts the next one, as long as there
// are gateways.
func (k *dialerKeeper) superviseDialer(cmd *exec.Cmd, control *net.UnixConn, began time.Time) {
	_ = cmd.Wait() // how it ended does not matter
	_ = control.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process, k.control = nil, nil
	if time.Since(began) > restartCalm {
		k.pause = restartFirst
	}
	for k.process == nil && len(k.gateways) > 0 {
		wait := k.pause
		k.pause = min(2*wait, restartMost)
		k.mu.Unlock()
		time.Sleep(wait)
		k.mu.Lock()
		if k.process == nil && len(k.gateways) > 0 {
			_ = k.startDialer() // or again
		}
	}
}

// dialerCommand is what starts a dialer.
func dialerCommand(control *os.File) *exec.Cmd {
	ids := dialerIDs()
	return &exec.Cmd{
		Path: selfExe, Args: []string{dialerRole}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{control},
		SysProcAttr: &syscall.SysProcAttr{
			// All but the network, which is what it is there for.
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: ids.uid, GidMappings: ids.gid,
			GidMappingsEnableSetgroups: ids.ranged,
			Credential:                 ids.credential,
			Pdeathsig:                  unix.SIGKILL,
		},
	}
}

// dialerIDs maps a dialer's only user to one without rights: for root, one that no engine
// and no gateway uses; for anybody else, the user itself.
func dialerIDs() engineMapping {
	if hasIDPool() {
		return singleID(rangeBase + rangeSize + 1)
	}
	return ownIDs()
}

// machineResolvers are those that the machine uses now.
func machineResolvers() ([]netip.AddrPort, error) {
	list, err := network.MachineResolvers(resolvConf)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return list, err
}
