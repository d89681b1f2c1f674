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

// dialerSupervisor is the part of the reaper that starts a dialer with the first gateway, and
// restarts a failed one. It has both ends of each gateway's socket, so that neither side sees its
// end when the other is replaced.
type dialerSupervisor struct {
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

func newDialerSupervisor(spawn func(*exec.Cmd) error) *dialerSupervisor {
	return &dialerSupervisor{spawn: spawn, gateways: make(map[sandpit.ID]*dialedGateway), pause: restartFirst}
}

// addGateway has the dialer serve a gateway, and returns the gateway's end of the socket, which
// the caller closes.
func (s *dialerSupervisor) addGateway(id sandpit.ID, g dialer.Grant) (*os.File, error) {
	gateway, end, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	// A gateway that does not read its replies then has few descriptors in transit.
	_ = unix.SetsockoptInt(int(end.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, 1) // the kernel has a minimum
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gateways[id] = &dialedGateway{g, end}
	if s.process == nil {
		err = s.startDialer()
	} else {
		err = s.sendOrder(id, true)
	}
	if err != nil {
		delete(s.gateways, id)
		_ = end.Close()
		_ = gateway.Close()
		return nil, fmt.Errorf("start a dialer: %w", err)
	}
	return gateway, nil
}

// renewGateway has the dialer serve a restarted gateway, whatever its predecessor did to the
// socket.
func (s *dialerSupervisor) renewGateway(id sandpit.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gateways[id] != nil && s.process != nil {
		_ = s.sendOrder(id, true) // otherwise the next dialer serves it
	}
}

// setInside replaces the internal addresses that a gateway may reach. NotFound: there is no such
// gateway.
func (s *dialerSupervisor) setInside(id sandpit.ID, inside []dialer.Range) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateways[id]
	if g == nil {
		return sandpit.Errorf(sandpit.NotFound, "sandbox %s has no gateway", id)
	}
	g.grant.Inside = inside
	if s.process == nil {
		return nil // the next dialer gets it before its first request
	}
	return s.sendOrder(id, false)
}

// removeGateway has the dialer stop serving a gateway.
func (s *dialerSupervisor) removeGateway(id sandpit.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gateways[id]
	if g == nil {
		return
	}
	delete(s.gateways, id)
	if s.process != nil {
		_ = s.sendOrder(id, false) // otherwise it is killed, and the next one does not know the gateway
	}
	_ = g.end.Close()
}

// sendOrder sends the dialer the state of a gateway, with its socket if that is new. A dialer that
// does not confirm is killed: its successor gets the state of all gateways.
func (s *dialerSupervisor) sendOrder(id sandpit.ID, withSocket bool) error {
	o := dialerOrder{ID: id}
	var files []*os.File
	if g := s.gateways[id]; g != nil {
		o.Grant = &g.grant
		if withSocket {
			files = []*os.File{g.end}
		}
	}
	err := s.control.SetDeadline(time.Now().Add(dialerLimit))
	if err == nil {
		err = writePacket(s.control, o, files...)
	}
	if err == nil {
		err = s.readReply()
	}
	if sandpit.CodeOf(err) == sandpit.Invalid {
		return err // the dialer is alive
	}
	if err != nil {
		_ = s.process.Process.Kill() // fails only if it has ended
	}
	return nil
}

func (s *dialerSupervisor) readReply() error {
	var rep dialerReply
	files, err := readPacket(s.control, &rep)
	closeAll(files)
	if err != nil {
		return err
	}
	return rep.Error.toError()
}

// startDialer starts a process and sends it the state of all gateways.
func (s *dialerSupervisor) startDialer() error {
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
	if err := s.spawn(cmd); err != nil {
		_ = control.Close()
		return explainNamespaceError(err)
	}
	s.process, s.control = cmd, control
	go s.superviseDialer(cmd, control, time.Now())
	if err = control.SetDeadline(time.Now().Add(dialerLimit)); err == nil {
		err = s.readReply()
	}
	if err != nil {
		_ = cmd.Process.Kill() // fails only if it has ended
		return err
	}
	for id := range s.gateways {
		if err := s.sendOrder(id, true); err != nil {
			return err
		}
	}
	return nil
}

// superviseDialer waits for the end of a process and starts the next one, as long as there are
// gateways.
func (s *dialerSupervisor) superviseDialer(cmd *exec.Cmd, control *net.UnixConn, began time.Time) {
	_ = cmd.Wait() // how it ended does not matter
	_ = control.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process, s.control = nil, nil
	if time.Since(began) > restartReset {
		s.pause = restartFirst
	}
	for s.process == nil && len(s.gateways) > 0 {
		wait := s.pause
		s.pause = min(2*wait, restartMax)
		s.mu.Unlock()
		time.Sleep(wait)
		s.mu.Lock()
		if s.process == nil && len(s.gateways) > 0 {
			_ = s.startDialer() // retried
		}
	}
}

// dialerCommand returns the command of a dialer.
func dialerCommand(control *os.File) *exec.Cmd {
	ids := dialerIDs()
	return &exec.Cmd{
		Path: selfExe, Args: []string{dialerRole}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{control},
		SysProcAttr: &syscall.SysProcAttr{
			// All but the network, which it needs.
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: ids.uid, GidMappings: ids.gid,
			GidMappingsEnableSetgroups: ids.ranged,
			Credential:                 ids.credential,
			Pdeathsig:                  unix.SIGKILL,
		},
	}
}

// dialerIDs maps a dialer's only user: for root to an ID without rights that no engine and no
// gateway has, for other users to themselves.
func dialerIDs() idMapping {
	if hasIDPool() {
		return singleIDMapping(rangeBase + rangeSize + 1)
	}
	return ownIDMapping()
}

// machineResolvers returns the DNS servers that the machine uses now.
func machineResolvers() ([]netip.AddrPort, error) {
	list, err := network.MachineResolvers(resolvConf)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return list, err
}
