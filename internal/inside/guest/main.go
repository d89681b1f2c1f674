package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"github.com/sandpit-dev/sandpit/internal/inside/applet"
	"github.com/sandpit-dev/sandpit/internal/inside/fileserver"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// Main runs the first process of a sandbox, or what a command started the executable as: an applet, the interpreter
// or the file server. It returns the exit status.
func Main() int {
	if len(os.Args) > 1 {
		if status, known := runRole(os.Args[1]); known {
			return status
		}
	}
	return exitStatus(serveGuest())
}

// runRole runs the role that the first argument names; known is false if it names none.
func runRole(name string) (status int, known bool) {
	switch name {
	case interpreter.Arg:
		return interpreter.Main(os.Args[2:]), true
	case fileserver.Arg:
		return exitStatus(showFiles()), true
	case maskedArg:
		return exitStatus(runMasked(os.Args[2:])), true
	case LaunchArg:
		return exitStatus(runLaunch(os.Args[2:])), true
	case listenArg:
		return exitStatus(runListen(os.Args[2:])), true
	}
	return applet.Main(name)
}

// exitStatus prints an error and returns the exit status for it.
func exitStatus(err error) int {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

func showFiles() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return fileserver.Run(ctx, os.Args[1:], os.Stdout)
}

func serveGuest() error {
	ignoreSignals()
	// With one processor, goroutines hand work to each other without waking a thread, which is slow in a sandbox: a
	// command takes 15 % less time.
	runtime.GOMAXPROCS(1)
	// A lower value would save 0.1 MB of an idle sandbox, and make one command in three wait 1.5 ms for the
	// collector.
	debug.SetGCPercent(100)
	syscall.Umask(0o022)
	setup, err := readSetup()
	if err != nil {
		return err
	}
	groups, err := setup.apply()
	if err != nil {
		return err
	}
	if err := prepareTmp(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g := newGuest("/") // the root is on the sandbox's own disk, whatever is mounted elsewhere
	g.processes.groups, g.markerDir = groups, e2bMarkerDir
	defer g.Close()
	if stop, err := g.shareEnviron(ctx); err != nil {
		// Another guest has the name if sandboxes share a network.
		_, _ = fmt.Fprintln(os.Stderr, "guest: share the environment:", err)
	} else {
		defer stop()
	}
	if len(os.Args) > 1 && os.Args[1] == StdioArg {
		g.processes.killFirst = true
		return serveStdio(ctx, g)
	}
	return serveConduit(ctx, g)
}

func serveConduit(ctx context.Context, g *Guest) error {
	syscall.CloseOnExec(ConduitFD)
	ln, err := openConduit(os.NewFile(ConduitFD, "conduit"), g)
	if err != nil {
		return err
	}
	defer ln.waitForRelays()
	server := newServer(g.Handler())
	ended := context.AfterFunc(ctx, func() { _ = server.Close() }) // requests in progress end with the sandbox
	defer ended()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newServer returns a server for HTTP/1.1 and unencrypted HTTP/2.
func newServer(h http.Handler) *http.Server {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    64 << 10,
		Protocols:         new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server
}

// ignoreSignals prevents signals from programs in the sandbox from ending the first process. It also resets the
// real-time signals: Go's runtime catches all of them, and every new process would first reset them one by one, which
// is half of its system calls before it executes its program.
func ignoreSignals() {
	if os.Getpid() != 1 {
		return
	}
	// The channel is never read: the signals are only to be caught.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	const first, last = 34, 64
	for sig := syscall.Signal(first); sig <= last; sig++ {
		signal.Ignore(sig) // the runtime stops catching it, but ignoring is inherited
		resetSignal(sig)
	}
}

// resetSignal gives a signal its default effect.
func resetSignal(sig syscall.Signal) {
	var action struct { // the kernel's struct sigaction
		handler, flags, restorer uintptr
		mask                     uint64
	}
	// A signal that cannot be set has its default effect.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig),
		uintptr(unsafe.Pointer(&action)), //nolint:gosec // the form of this system call
		0, unsafe.Sizeof(action.mask), 0, 0)
}

// prepareTmp creates /tmp, which every program expects and not every root file system has.
func prepareTmp() error {
	if err := os.MkdirAll("/tmp", 0o777); err != nil {
		return err
	}
	return os.Chmod("/tmp", fs1777)
}

const fs1777 = os.ModeSticky | 0o777
