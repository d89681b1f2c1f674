package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// Main is the first process of a sandbox. It returns its exit status.
func Main() int {
	if err := serve(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

func serve() error {
	// Memory counts for every sandbox, and this program has little to collect.
	debug.SetGCPercent(50)
	syscall.Umask(0o022)
	if err := prepare(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	syscall.CloseOnExec(ConduitFD)
	ln, err := openConduit(os.NewFile(ConduitFD, "conduit"))
	if err != nil {
		return err
	}
	defer ln.wait()
	g := New()
	defer g.Close()
	server := newServer(g.Handler())
	ended := context.AfterFunc(ctx, func() { _ = server.Close() }) // what is being served ends with the sandbox
	defer ended()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newServer speaks HTTP/1.1 and, without encryption, HTTP/2.
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

// prepare makes what every program expects and not every root file system has.
func prepare() error {
	if err := os.MkdirAll("/tmp", 0o777); err != nil {
		return err
	}
	return os.Chmod("/tmp", fs1777)
}

const fs1777 = os.ModeSticky | 0o777
