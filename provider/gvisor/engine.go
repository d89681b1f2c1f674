package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// Descriptors that the engine is started with.
const (
	engineListenFD = 3
	engineReadyFD  = 4
	engineLockFD   = 5 // held and never used: the lock lasts as long as one of its descriptors

	engineGatewaysFD = 6 // the connection of a gatewayRequester
)

// idsArgument means that the engine's sandboxes get IDs of their own.
const idsArgument = "ids"

// Paths in the engine's own root directory, a tmpfs that ends with the engine.
const (
	hostRoot    = "/host"    // the machine's root directory
	stateDir    = "/gvisor"  // gVisor's own state
	sidecarDir  = "/sidecar" // where gVisor finds its helper programs
	bundleDir   = "/boxes"   // one directory for each sandbox
	engineRoot  = "/tmp"     // where the tmpfs is mounted before it becomes the root; exists on every machine
	rootSize    = "64m"
	netnsPath   = "/proc/1/ns/net"
	engineIDEnv = "GVISOR_SIDECAR_BINARIES_DIR"
)

// engineMain is the main function of an engine, the first process in namespaces of its own.
func engineMain(args []string) int {
	ready := os.NewFile(engineReadyFD, "ready")
	for _, fd := range []int{engineListenFD, engineReadyFD, engineLockFD, engineGatewaysFD} {
		unix.CloseOnExec(fd)
	}
	e := &engine{sandboxes: make(map[sandpit.ID]*engineSandbox)}
	if len(args) == 0 {
		return 2
	}
	err := json.Unmarshal([]byte(args[0]), &e.cgroups)
	var ln *net.UnixListener
	if err == nil {
		e.gateways.conn, err = unixConn(os.NewFile(engineGatewaysFD, "gateways"))
	}
	if err == nil {
		ln, err = setUpEngine(slices.Contains(args[1:], idsArgument))
	}
	if err != nil {
		reportReady(ready, err)
		return 1
	}
	reportReady(ready, nil)
	if err := e.serve(ln); err != nil {
		fmt.Fprintln(os.NewFile(2, "log"), "engine:", err)
		return 1
	}
	return 0
}

// setUpEngine sets up the engine's namespaces, confines the engine and opens its socket.
func setUpEngine(givesIDs bool) (*net.UnixListener, error) {
	if err := enterOwnRoot(); err != nil {
		return nil, explainMountError(err)
	}
	if err := startLoopback(); err != nil {
		return nil, fmt.Errorf("start the loopback interface: %w", err)
	}
	if err := nullStdio(); err != nil {
		return nil, err
	}
	if err := os.Setenv(engineIDEnv, sidecarDir); err != nil {
		return nil, err
	}
	if err := confine.Engine(givesIDs); err != nil {
		return nil, fmt.Errorf("confine the engine: %w", err)
	}
	return listenControl()
}

// enterOwnRoot makes a tmpfs the root directory, with a new /proc and the machine's files below
// hostRoot. Kernels and file servers, which have other IDs, find their own directories there.
func enterOwnRoot() error {
	unix.Umask(0o022) // independent of the owner's
	steps := []struct {
		what string
		do   func() error
	}{
		{"detach from the machine's mounts", func() error {
			return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
		}},
		{"mount a root directory", func() error {
			return unix.Mount("sandpit", engineRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size="+rootSize)
		}},
		{"populate the root directory", populateRoot},
		{"mount /proc", func() error {
			return unix.Mount("proc", engineRoot+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}},
		// Last, because earlier errors are explained with files of the machine.
		{"change the root directory", func() error {
			return unix.PivotRoot(engineRoot, engineRoot+hostRoot)
		}},
		{"enter the root directory", func() error { return unix.Chdir("/") }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

func populateRoot() error {
	for _, dir := range []string{hostRoot, "/proc", "/tmp", stateDir, sidecarDir, bundleDir} {
		if err := os.Mkdir(engineRoot+dir, 0o755); err != nil { //nolint:gosec // the root above is closed to others
			return err
		}
	}
	for name, target := range map[string]string{
		"/dev": "host/dev",
		"/etc": "host/etc",
		"/sys": "host/sys",
		// gVisor expects its kernel program beside itself or in this directory. The engine is
		// that program.
		sidecarDir + "/gvisor_sentry": selfExe,
	} {
		if err := os.Symlink(target, engineRoot+name); err != nil {
			return err
		}
	}
	return nil
}

// startLoopback starts the only interface of a new network namespace. All offline sandboxes of the
// engine share this namespace; each has a network stack of its own in its kernel.
func startLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// nullStdio replaces the standard files by the null device, because gVisor passes the values of
// these variables to the first process of a sandbox.
func nullStdio() error {
	null, err := openNull()
	if err != nil {
		return err
	}
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	gvlog.SetTarget(gvlog.GoogleEmitter{Writer: &gvlog.Writer{Next: null}})
	return nil
}

func listenControl() (*net.UnixListener, error) {
	if err := unix.Listen(engineListenFD, 128); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listenerOf(engineListenFD)
}

// unixConn returns a socket as a connection, and closes the file.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	return unixConn, nil
}

// listenerOf returns a listener for a socket that this process was started with.
func listenerOf(fd uintptr) (*net.UnixListener, error) {
	f := os.NewFile(fd, controlName)
	defer f.Close()
	return fileListener(f)
}

// fileListener returns a listener for a socket, which still belongs to the caller.
func fileListener(f *os.File) (*net.UnixListener, error) {
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	unixLn, ok := ln.(*net.UnixListener)
	if !ok {
		return nil, errors.New("listen: not a unix socket")
	}
	unixLn.SetUnlinkOnClose(false)
	return unixLn, nil
}

// engine has the sandboxes of an engine process.
type engine struct {
	cgroups  cgroup.Groups // the engine's, with those of its sandboxes below
	gateways gatewayRequester

	mu        sync.Mutex
	sandboxes map[sandpit.ID]*engineSandbox
}

// newConfig returns gVisor's configuration for a sandbox with the layer. setIDs decides whether
// the set-ID bits of programs apply.
func newConfig(l layer, setIDs bool) (*config.Config, error) {
	flags := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(flags)
	err := flags.Parse([]string{
		"--root=" + stateDir,
		"--platform=systrap", // needs no support by the machine
		"--network=sandbox",
		"--directfs=false", // the kernel process then has no file of the machine open
		"--ignore-cgroups",
		"--rootless",
		"--host-settings=ignore",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		"--in-sandbox-cgroup=v2",
		"--restore-spec-validation=ignore",       // paths and IDs differ; the provider checks what must be equal
		"--file-access-mounts=exclusive",         // except for mounts with sharedAnnotations
		"--overlay2=root:" + l.toOverlayMedium(), // only the directory is read from here, the rest from annotations
		"--allow-suid=" + strconv.FormatBool(setIDs),
	})
	if err != nil {
		return nil, err
	}
	return config.NewFromFlags(flags)
}

// serve handles requests until the socket fails. An engine does not end by itself: its reaper
// kills it, and the machine's kernel cleans up.
func (e *engine) serve(ln *net.UnixListener) error { return serveListener(ln, e.handleRequest) }

// serveListener handles requests until the socket fails.
func serveListener(ln *net.UnixListener, handle func(context.Context, request, []*os.File) (reply, *os.File, error)) error {
	for {
		conn, err := ln.AcceptUnix()
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			time.Sleep(10 * time.Millisecond) // until another call ends and frees a descriptor
			continue
		}
		if err != nil {
			return err
		}
		go serveConn(conn, handle) // ends with its connection
	}
}

func (e *engine) handleRequest(ctx context.Context, req request, files []*os.File) (reply, *os.File, error) {
	if err := req.ID.Validate(); err != nil {
		return reply{}, nil, err
	}
	if req.Op == opCreate {
		notes, err := e.createSandbox(ctx, req, files)
		return reply{Notes: notes}, nil, err
	}
	e.mu.Lock()
	sb := e.sandboxes[req.ID]
	e.mu.Unlock()
	if sb == nil {
		return reply{}, nil, sandpit.Errorf(sandpit.Gone, "sandbox %s does not exist", req.ID)
	}
	switch req.Op {
	case opDial:
		f, err := sb.dialPort(ctx, req.Port)
		return reply{}, f, err
	case opWait:
		exit, err := sb.awaitEnd(ctx)
		return reply{Exit: &exit, Stopped: sb.wasStopped()}, nil, err
	case opSettle:
		return reply{}, nil, sb.applyLimits()
	case opStats:
		stats, err := sb.measure()
		return reply{Stats: &stats, Paused: sb.isPaused()}, nil, err
	case opPause:
		return reply{}, nil, sb.pause()
	case opResume:
		return reply{}, nil, sb.resume()
	case opResize:
		return reply{}, nil, sb.resize(req.Limits)
	case opSave, opState, opUnsave, opLayer:
		return reply{}, nil, sb.handleSaving(ctx, req, files)
	case opHeld:
		f, err := sb.openHeld(req.Held)
		return reply{}, f, err
	case opIdentify:
		return reply{}, nil, sb.setIdentity(files)
	case opDestroy:
		if req.Stopped {
			sb.markStopped()
		}
		err := sb.destroy()
		e.removeSandbox(sb)
		return reply{}, nil, err
	default:
		return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "unknown operation %q", req.Op)
	}
}

// handleSaving handles the requests that save a sandbox.
func (sb *engineSandbox) handleSaving(ctx context.Context, req request, files []*os.File) error {
	switch {
	case req.Op == opUnsave:
		return sb.undoSave()
	case req.Op == opLayer:
		return sb.copyLayer(ctx, files)
	case req.Op == opSave && req.GoOn:
		return sb.saveAndContinue(ctx, files)
	case req.Op == opSave:
		return sb.saveStopped(ctx, files)
	case req.Save == nil:
		return sandpit.Errorf(sandpit.Invalid, "save: the description is missing")
	}
	return sb.saveState(ctx, *req.Save, files)
}

// createSandbox creates a sandbox and returns which limits are not enforced. If it fails, or the
// caller cancels, nothing of the sandbox remains.
func (e *engine) createSandbox(ctx context.Context, req request, files []*os.File) (notes []string, err error) {
	if req.Create == nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "create: the description is missing")
	}
	sb := newEngineSandbox(req.ID, &e.gateways)
	e.mu.Lock()
	_, exists := e.sandboxes[req.ID]
	if !exists {
		e.sandboxes[req.ID] = sb
	}
	e.mu.Unlock()
	if exists {
		return nil, sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", req.ID)
	}
	notes, err = sb.create(ctx, *req.Create, e.cgroups, files)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		err = errors.Join(err, sb.destroy())
		e.removeSandbox(sb)
	}
	return notes, err
}

func (e *engine) removeSandbox(sb *engineSandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sandboxes[sb.id] == sb {
		delete(e.sandboxes, sb.id)
	}
}
