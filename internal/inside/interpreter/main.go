package interpreter

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Arg is the argument that makes the guest's executable an interpreter.
const Arg = "interpreter"

// DefaultListen is the address at which E2B's clients expect the interpreter.
const DefaultListen = "0.0.0.0:49999"

// bootIDPath is a file whose content differs between a sandbox and its copies.
const bootIDPath = "/proc/sys/kernel/random/boot_id"

// Main serves an interpreter until a signal ends it, and returns the exit status.
//
//	sandpit-guest interpreter [-listen ADDRESS] [-dir DIRECTORY] [-languages python,javascript]
//	sandpit-guest interpreter -stdio [-dir DIRECTORY]
//
// The second form is the other side of a Remote.
func Main(args []string) int {
	flags := flag.NewFlagSet(Arg, flag.ContinueOnError)
	listen := flags.String("listen", DefaultListen, "the address to listen on")
	dir := flags.String("dir", "", "directory of contexts that name none (default: /home/user if it exists, else the current directory)")
	languages := flags.String("languages", "python,javascript", "languages whose kernels are started at once, if the image has their programs")
	stdio := flags.Bool("stdio", false, "serve over the standard input and output instead of an address")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	if *stdio {
		err = serveStdio(ctx, *dir)
	} else {
		err = serveHTTP(ctx, *listen, homeOf(*dir), strings.Split(*languages, ","))
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "interpreter:", err)
		return 1
	}
	return 0
}

func homeOf(dir string) string {
	const home = "/home/user"
	if info, err := os.Stat(home); dir == "" && err == nil && info.IsDir() {
		return home
	}
	return dir
}

func serveHTTP(ctx context.Context, listen, dir string, languages []string) error {
	service := New(Options{Dir: dir, Identity: readBootID, Environ: guestEnviron})
	defer service.Close()
	ready := make(chan struct{})
	server := &http.Server{Addr: listen, Handler: service.Handler(ready), ReadHeaderTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	err := service.Prepare(ctx, languages...)
	if err == nil {
		close(ready)
		select {
		case <-ctx.Done():
		case err = <-served:
			return err
		}
	}
	_ = server.Close() // runs in progress end with the service
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// readBootID returns a text that differs between copies of this sandbox, or "" if it is unknown.
func readBootID() string {
	id, err := os.ReadFile(bootIDPath)
	if err != nil {
		return "" // without it copies cannot be recognized
	}
	return string(id)
}
