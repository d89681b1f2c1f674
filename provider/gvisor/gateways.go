package gvisor

import (
	"encoding/json"
	"fmt"
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
)

// gatewaysName is the directory in an engine's that holds a control socket for each
// gateway.
const gatewaysName = "gateways"

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

// gatewayClient is the engine's end of the connection to its reaper, which can
// start processes in the machine's network where the engine cannot.
type gatewayClient struct {
	mu   sync.Mutex
	conn *net.UnixConn
}

// start returns when the gateway's process has been started. The files stay the
// caller's.
func (c *gatewayClient) start(req gatewayRequest, link, life *os.File) error {
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
	return rep.Error.err()
}

// gatewayStarter is the reaper's part: it starts gateways, and starts them again
// when they break down.
type gatewayStarter struct {
	dir   string
	spawn chan func()
	// last is the newest gateway of each sandbox, until it is seen to be gone. It is
	// serveGateways' own.
	last map[sandpit.ID]*gatewayProcess
}

// serveGateways answers the engine's requests. It ends with the process.
func serveGateways(dir string, conn *net.UnixConn) {
	s := &gatewayStarter{dir: filepath.Join(dir, gatewaysName), spawn: make(chan func()), last: make(map[sandpit.ID]*gatewayProcess)}
	go s.spawner()
	for {
		var req gatewayRequest
		files, err := readPacket(conn, &req)
		if err == nil && len(files) != gatewayFiles {
			err = sandpit.Errorf(sandpit.Invalid, "start a gateway: files are missing")
		} else if err != nil && len(files) == 0 {
			return // the engine is gone
		}
		if err == nil {
			err = s.start(req, files)
		}
		if err != nil {
			closeAll(files)
		}
		if err := writePacket(conn, gatewayReply{Error: newReplyError(err)}); err != nil {
			return
		}
	}
}

// spawner starts processes on a thread that never ends before the reaper does:
// they die with the thread that started them.
func (s *gatewayStarter) spawner() {
	runtime.LockOSThread()
	for f := range s.spawn {
		f()
	}
}

// gatewayProcess is one gateway, as long as its sandbox lives.
type gatewayProcess struct {
	starter *gatewayStarter
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

// start takes the files over, unless there is an error.
func (s *gatewayStarter) start(req gatewayRequest, files []*os.File) error {
	if err := req.ID.Validate(); err != nil {
		return err
	}
	if err := s.awaitLast(req.ID); err != nil {
		return fmt.Errorf("start a gateway: %w", err)
	}
	p := &gatewayProcess{starter: s, path: filepath.Join(s.dir, string(req.ID)), ended: make(chan struct{}), gone: make(chan struct{})}
	link, life := files[0], files[1]
	listen, err := s.listen(string(req.ID))
	if err != nil {
		return fmt.Errorf("start a gateway: %w", err)
	}
	config, err := newGatewayConfig(req.Config)
	if err != nil {
		_ = listen.Close()
		return fmt.Errorf("start a gateway: %w", err)
	}
	p.files = []*os.File{link, listen, config, life} // see gatewayLinkFD and its neighbours
	cmd, err := p.run(0)
	if err != nil {
		closeAll(p.files[1:3])
		_ = os.Remove(p.path)
		return fmt.Errorf("start a gateway: %w", err)
	}
	go func() { // ends when the sandbox does
		defer close(p.ended)
		_, _ = life.Read(make([]byte, 1))
	}()
	go p.keep(cmd)
	s.last[req.ID] = p
	return nil
}

// listen makes a control socket.
func (s *gatewayStarter) listen(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "gateway")
	dir, err := os.Open(s.dir)
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

func newGatewayConfig(cfg gatewayConfig) (*os.File, error) {
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
	restartMost  = 5 * time.Second
	restartCalm  = time.Minute // who lived that long counts as sound
)

// keep starts the gateway again until the sandbox is gone.
func (p *gatewayProcess) keep(cmd *exec.Cmd) {
	defer close(p.gone)
	wait := restartFirst
	for number := 1; ; number++ {
		began := time.Now()
		p.await(cmd)
		if time.Since(began) > restartCalm {
			wait = restartFirst
		}
		select {
		case <-p.ended:
			closeAll(p.files)
			_ = os.Remove(p.path) // or with the engine's directory
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, restartMost)
		var err error
		if cmd, err = p.run(number); err != nil {
			cmd = nil // the machine may have room for it later
		}
	}
}

// await returns when the process has ended. It kills it when the sandbox is gone.
func (p *gatewayProcess) await(cmd *exec.Cmd) {
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

// run starts a process, the first or one after a break-down.
func (p *gatewayProcess) run(number int) (*exec.Cmd, error) {
	null, err := openNull()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ids := gatewayIDs()
	cmd := &exec.Cmd{
		Path:  selfExe,
		Args:  []string{gatewayRole, strconv.Itoa(number)},
		Env:   []string{},
		Dir:   "/",
		Stdin: null, Stdout: null, Stderr: null,
		ExtraFiles: p.files,
		SysProcAttr: &syscall.SysProcAttr{
			// All but the network, which is what it is there for.
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: ids.uid, GidMappings: ids.gid,
			GidMappingsEnableSetgroups: ids.ranged,
			Credential:                 ids.credential,
			Pdeathsig:                  unix.SIGKILL,
		},
	}
	started := make(chan error, 1)
	p.starter.spawn <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, explainNamespaceError(err)
	}
	return cmd, nil
}

// gatewayIDs maps a gateway's only user to one without rights: for root, one that
// no engine uses; for anybody else, the user itself.
func gatewayIDs() engineMapping {
	if hasIDPool() {
		return singleID(rangeBase + rangeSize)
	}
	return ownIDs()
}
