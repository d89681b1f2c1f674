package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
)

// gatewaysName is the directory in an engine's that holds a control socket for each
// gateway; grantsName is the reaper's socket there.
const (
	gatewaysName = "gateways"
	grantsName   = "grants"
)

// gatewayRequest asks the reaper for a gateway. The files beside it are the link and the reading
// end of a pipe: the gateway runs until the other end is closed.
type gatewayRequest struct {
	ID     sandpit.ID    `json:"id"`
	Config gatewayConfig `json:"config"`
}

type gatewayReply struct {
	Error *replyError `json:"error,omitempty"`
}

const gatewayFiles = 2

// gatewayRequester is the engine's end of the connection to its reaper, which can start processes
// in the machine's network namespace. The engine cannot.
type gatewayRequester struct {
	mu   sync.Mutex
	conn *net.UnixConn
}

// requestGateway returns when the gateway's process has been started. The files still belong to
// the caller.
func (c *gatewayRequester) requestGateway(req gatewayRequest, link, life *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := writePacket(c.conn, req, link, life); err != nil {
		return fmt.Errorf("ask for a gateway: %w", err)
	}
	var rep gatewayReply
	files, err := readPacket(c.conn, &rep)
	closeAll(files)
	if err != nil {
		return fmt.Errorf("ask for a gateway: %w", err)
	}
	return rep.Error.toError()
}

// gatewayStarter is the part of the reaper that starts gateways, and restarts failed ones.
type gatewayStarter struct {
	dir     string
	spawn   chan func()
	dialers *dialerSupervisor
	// last is the newest gateway of each sandbox, until it has ended. Only
	// serveEngine uses it.
	last map[sandpit.ID]*gatewayProcess

	mu sync.Mutex
	// grants are those of gateways that have not been started.
	grants map[sandpit.ID]pendingGrant
}

// pendingGrant is a grant whose gateway has not been started.
type pendingGrant struct {
	dialer.Grant

	since time.Time
}

// Bounds of grants whose gateways have not been started. Providers withdraw the grants of
// sandboxes that cannot be created; killed providers leave them.
const (
	maxGrants = 10000
	grantLife = time.Hour
)

// newGatewayStarter returns the starter of the gateways of the engine with a directory. It ends
// with the process.
func newGatewayStarter(dir string) *gatewayStarter {
	s := &gatewayStarter{
		dir: filepath.Join(dir, gatewaysName), spawn: make(chan func()),
		last: make(map[sandpit.ID]*gatewayProcess), grants: make(map[sandpit.ID]pendingGrant),
	}
	s.dialers = newDialerSupervisor(s.startProcess)
	go s.runSpawner()
	return s
}

// handleGrant stores what a provider grants to a gateway. Providers send that here and not through
// the engine or the gateway, which are closer to sandboxes.
func (s *gatewayStarter) handleGrant(_ context.Context, req request, _ []*os.File) (reply, *os.File, error) {
	if err := req.ID.Validate(); err != nil {
		return reply{}, nil, err
	}
	if req.Op != opGrant {
		return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "unknown operation %q", req.Op)
	}
	switch {
	case req.Fresh:
		return reply{}, nil, s.setPendingGrant(req.ID, req.Grant)
	case req.Grant == nil:
		return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "the grant is missing")
	}
	return reply{}, nil, s.dialers.setInside(req.ID, req.Grant.Inside)
}

// setPendingGrant stores the grant of a gateway that has not been started. Nil: the gateway will
// not be started.
func (s *gatewayStarter) setPendingGrant(id sandpit.ID, g *dialer.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.grants, id)
	if g == nil {
		return nil
	}
	now := time.Now()
	if len(s.grants) >= maxGrants {
		maps.DeleteFunc(s.grants, func(_ sandpit.ID, p pendingGrant) bool { return now.Sub(p.since) > grantLife })
	}
	if len(s.grants) >= maxGrants {
		return sandpit.Errorf(sandpit.Exhausted, "too many sandboxes are being created")
	}
	s.grants[id] = pendingGrant{*g, now}
	return nil
}

// takeGrant returns the grant of the gateway that is being started. Default resolvers: those of
// the machine.
func (s *gatewayStarter) takeGrant(id sandpit.ID) (dialer.Grant, error) {
	s.mu.Lock()
	g := s.grants[id].Grant
	delete(s.grants, id)
	s.mu.Unlock()
	var err error
	if len(g.Resolvers) == 0 {
		g.Resolvers, err = machineResolvers()
	}
	return g, err
}

// serveEngine handles the engine's requests. It returns when the engine has ended.
func (s *gatewayStarter) serveEngine(conn *net.UnixConn) {
	for {
		var req gatewayRequest
		files, err := readPacket(conn, &req)
		if err == nil && len(files) != gatewayFiles {
			err = sandpit.Errorf(sandpit.Invalid, "start a gateway: files are missing")
		} else if err != nil && len(files) == 0 {
			return // the engine is gone
		}
		if err == nil {
			err = s.startGateway(req, files)
		}
		if err != nil {
			closeAll(files)
		}
		if err := writePacket(conn, gatewayReply{Error: newReplyError(err)}); err != nil {
			return
		}
	}
}

// runSpawner starts processes on a thread that ends with the reaper: they are killed with the
// thread that started them.
func (s *gatewayStarter) runSpawner() {
	runtime.LockOSThread()
	for f := range s.spawn {
		f()
	}
}

// startProcess starts a process on the spawner's thread.
func (s *gatewayStarter) startProcess(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	s.spawn <- func() { started <- cmd.Start() }
	return <-started
}

// gatewayProcess is one gateway with its restarts, as long as its sandbox runs.
type gatewayProcess struct {
	starter *gatewayStarter
	id      sandpit.ID
	path    string // of the control socket
	files   []*os.File
	ended   chan struct{} // closed when the sandbox has ended
	gone    chan struct{} // closed when the gateway has ended
}

// gatewayEnd is how long a gateway may take to end after its sandbox.
const gatewayEnd = 10 * time.Second

// awaitLast waits for the end of the gateway that the sandbox had before it was stopped or
// suspended: its socket has the same name.
func (s *gatewayStarter) awaitLast(id sandpit.ID) error {
	for other, p := range s.last {
		select {
		case <-p.gone:
			delete(s.last, other)
		default:
		}
	}
	p := s.last[id]
	if p == nil {
		return nil
	}
	select {
	case <-p.gone:
		delete(s.last, id)
		return nil
	case <-time.After(gatewayEnd):
		return sandpit.Errorf(sandpit.Unavailable, "its predecessor has not ended")
	}
}

// startGateway starts a gateway and supervises it. Unless there is an error, the files belong to
// it.
func (s *gatewayStarter) startGateway(req gatewayRequest, files []*os.File) error {
	if err := req.ID.Validate(); err != nil {
		return err
	}
	if err := s.awaitLast(req.ID); err != nil {
		return fmt.Errorf("start a gateway: %w", err)
	}
	grant, err := s.takeGrant(req.ID)
	if err != nil {
		return fmt.Errorf("start a gateway: %w", err)
	}
	req.Config.Resolvers = grant.Resolvers
	p := &gatewayProcess{starter: s, id: req.ID, path: filepath.Join(s.dir, string(req.ID)), ended: make(chan struct{}), gone: make(chan struct{})}
	link, life := files[0], files[1]
	listen, err := listenIn(s.dir, string(req.ID))
	if err != nil {
		return fmt.Errorf("start a gateway: %w", err)
	}
	config, err := newGatewayConfigFile(req.Config)
	if err != nil {
		_ = listen.Close()
		return fmt.Errorf("start a gateway: %w", err)
	}
	dial, err := s.dialers.addGateway(req.ID, grant)
	if err != nil {
		closeAll([]*os.File{listen, config})
		_ = os.Remove(p.path)
		return fmt.Errorf("start a gateway: %w", err)
	}
	p.files = []*os.File{link, listen, config, life, dial} // see gatewayLinkFD and its neighbours
	cmd, err := p.startProcess(0)
	if err != nil {
		s.dialers.removeGateway(req.ID)
		closeAll([]*os.File{listen, config, dial})
		_ = os.Remove(p.path)
		return fmt.Errorf("start a gateway: %w", err)
	}
	go func() { // ends when the sandbox does
		defer close(p.ended)
		_, _ = life.Read(make([]byte, 1))
	}()
	go p.supervise(cmd)
	s.last[req.ID] = p
	return nil
}

// listenIn creates a listening socket in a directory.
func listenIn(path, name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "gateway")
	dir, err := os.Open(path)
	if err == nil {
		defer dir.Close()
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: descriptorPath(dir, name)})
	}
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func newGatewayConfigFile(cfg gatewayConfig) (*os.File, error) {
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("sandpit-gateway", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Backoff of restarts: a sandbox may be able to crash its gateway.
const (
	restartFirst = 10 * time.Millisecond
	restartMax   = 5 * time.Second
	restartReset = time.Minute // a process that ran this long resets the backoff
)

// supervise restarts the gateway until the sandbox has ended.
func (p *gatewayProcess) supervise(cmd *exec.Cmd) {
	defer close(p.gone)
	wait := restartFirst
	for number := 1; ; number++ {
		began := time.Now()
		p.awaitProcess(cmd)
		if time.Since(began) > restartReset {
			wait = restartFirst
		}
		select {
		case <-p.ended:
			p.starter.dialers.removeGateway(p.id)
			closeAll(p.files)
			_ = os.Remove(p.path) // otherwise removed with the engine's directory
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMax)
		p.starter.dialers.renewGateway(p.id)
		var err error
		if cmd, err = p.startProcess(number); err != nil {
			cmd = nil // it may succeed later
		}
	}
}

// awaitProcess returns when the process has ended. It kills the process when the sandbox has
// ended.
func (p *gatewayProcess) awaitProcess(cmd *exec.Cmd) {
	if cmd == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended does not matter
	}()
	select {
	case <-done:
	case <-p.ended:
		_ = cmd.Process.Kill() // fails only if it has ended
		<-done
	}
}

// startProcess starts the first process, or one after a failure.
func (p *gatewayProcess) startProcess(number int) (*exec.Cmd, error) {
	cmd := gatewayCommand(number, p.files)
	if err := p.starter.startProcess(cmd); err != nil {
		return nil, explainNamespaceError(err)
	}
	return cmd, nil
}

// gatewayCommand returns the command of a gateway; number counts the restarts. The files are those
// of gatewayLinkFD and the following descriptors.
func gatewayCommand(number int, files []*os.File) *exec.Cmd {
	ids := gatewayIDs()
	return &exec.Cmd{
		Path: selfExe, Args: []string{gatewayRole, strconv.Itoa(number)}, Env: []string{}, Dir: "/",
		ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{
			// The network as well: connections come from the dialer.
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
				unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: ids.uid, GidMappings: ids.gid,
			GidMappingsEnableSetgroups: ids.ranged,
			Credential:                 ids.credential,
			Pdeathsig:                  unix.SIGKILL,
		},
	}
}

// gatewayIDs maps a gateway's only user: for root to an ID without rights that no engine has, for
// other users to themselves.
func gatewayIDs() idMapping {
	if hasIDPool() {
		return singleIDMapping(rangeBase + rangeSize)
	}
	return ownIDMapping()
}
