package fileserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// Arg makes the guest's executable serve files instead of being a sandbox's first process.
const Arg = "site"

// Ready is the line that the command prints when it listens.
const Ready = "ready"

// Command returns the command that serves the files of a directory at a port of the sandbox's loopback address until
// it is ended. A relative directory is relative to the command's working directory.
func Command(dir string, port int) []string {
	return []string{sandpit.GuestDir + "/sandpit-guest", Arg, dir, strconv.Itoa(port)}
}

// Run is that command, from Arg on. It returns when ctx ends, or with the reason why it cannot serve.
func Run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: %s DIRECTORY PORT", Arg)
	}
	port, err := strconv.ParseUint(args[2], 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("port %.20q: want 1 to 65535", args[2])
	}
	root, err := beneath.Open(args[1])
	if err != nil {
		return err
	}
	defer root.Close()
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", args[2]))
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           Handler(root),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	ended := context.AfterFunc(ctx, func() { _ = server.Close() }) // requests in progress are cut off
	defer ended()
	if _, err := fmt.Fprintln(out, Ready); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
