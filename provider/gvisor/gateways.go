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

// gatewayRequest asks the reaper for a gateway. The files beside it are the link
// and the reading end of a pipe: the gateway is there until that is closed.
type gatewayRequest struct {
	ID     sandpit.ID    `json:"id"`
	Config gatewayConfig `json:"config"`
}

type gatewayReply struct {
	Error *replyError `json:"error,omitempty"`
}

const gatewayFiles = 2

// gatewayRequester is the engine's end of the connection to its reaper, which can
// start processes in the machine's network where the engine cannot.
type gatewayRequester struct {
	mu   sync.Mutex
	conn *net.UnixConn
}

// requestGateway returns when the gateway's process has been started. The files stay the
// caller's.
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

// gatewayStarter is the reaper's part: it starts gateways, and starts them again
// when they break down.
type gatewayStarter struct {
	dir     string
	spawn   chan func()
	dialers *dialerSupervisor
	// last is the newest gateway of each sandbox, until it is seen to be gone. It is
	// serve's own.
	last map[sandpit.ID]*gatewayProcess

	mu sync.Mutex
	// grants are those of gateways that are still to be started.
	grants map[sandpit.ID]pendingGrant
}

// pendingGrant waits for its gateway.
type pendingGrant struct {
	dialer.Grant

	since time.Time
}

// The bounds of grants whose gateways are still to be started. Providers withdraw those of
// sandboxes that cannot be created; one that is killed leaves them behind.
const (
	maxGrants = 10000
	grantLife = time.Hour
)

// newGatewayStarter returns what starts gateways of the engine whose directory is dir. It
// ends with the process.
func newGatewayStarter(dir string) *gatewayStarter {
	s := &gatewayStarter{
		dir: filepath.Join(dir, gatewaysName), spawn: make(chan func()),
		last: make(map[sandpit.ID]*gatewayProcess), grants: make(map[sandpit.ID]pendingGrant),
	}
	s.dialers = newDialerSupervisor(s.startProcess)
	go s.runSpawner()
	return s
}

// handleGrant stores what a provider grants to gateways. Providers send that here, not through
// the engine or a gateway, which are closer to sandboxes.
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

// setPendingGrant stores what a gateway gets that is still to be started. Nil: the gateway
// will not be started.
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

// takeGrant returns the grant of the gateway that is being started. Default resolvers: the
// machine's.
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

// serveEngine answers the engine's requests. It ends with the engine.
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

// runSpawner starts processes on a thread that never ends before the reaper does:
// they die with the thread that started them.
func (s *gatewayStarter) runSpawner() {
	runtime.LockOSThread()
	for f := range s.spawn {
		f()
	}
}

// startProcess starts a process.
func (s *gatewayStarter) startProcess(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	s.spawn <- func() { started <- cmd.Start() }
	return <-started
}

// gatewayProcess is one gateway, as long as its sandbox lives.
type gatewayProcess struct {
	starter *gatewayStarter
	id      sandpit.ID
	path    string // of the control socket
	files   []*os.File
	ended   chan struct{} // closed when the sandbox is gone
	gone    chan struct{} // closed when the gateway is, too
}

// gatewayEnd is how long a gateway may take to go after its sandbox.
const gatewayEnd = 10 * time.Second

// awaitLast waits until the gateway is gone that a sandbox had before it was stopped or
// paused on disk: it has the same name.
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
		return sandpit.Errorf(sandpit.Unavailable, "the one before has not ended")
	}
}

// startGateway takes the files over, unless there is an error.
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

// listenIn makes a control socket in a directory.
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

// Between a gateway's break-down and the next start passes this much time: more
// with each that did not live long, since a sandbox may know how to break one.
const (
	restartFirst = 10 * time.Millisecond
	restartMax   = 5 * time.Second
	restartReset = time.Minute // who lived that long counts as sound
)

// supervise starts the gateway again until the sandbox is gone.
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
			_ = os.Remove(p.path) // or with the engine's directory
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMax)
		p.starter.dialers.renewGateway(p.id)
		var err error
		if cmd, err = p.startProcess(number); err != nil {
			cmd = nil // the machine may have room for it later
		}
	}
}

// awaitProcess returns when the process has ended. It kills it when the sandbox is gone.
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

// startProcess starts a process, the first or one after a break-down.
func (p *gatewayProcess) startProcess(number int) (*exec.Cmd, error) {
	cmd := gatewayCommand(number, p.files)
	if err := p.starter.startProcess(cmd); err != nil {
		return nil, explainNamespaceError(err)
	}
	return cmd, nil
}

// gatewayCommand is what starts a gateway, the number says which of its sandbox. The files
// are those that gatewayLinkFD and its neighbours name.
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

// gatewayIDs maps a gateway's only user to one without rights: for root, one that
// no engine uses; for anybody else, the user itself.
func gatewayIDs() idMapping {
	if hasIDPool() {
		return singleIDMapping(rangeBase + rangeSize)
	}
	return ownIDMapping()
}
