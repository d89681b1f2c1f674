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

// Arg is the argument by which the guest program becomes an interpreter.
const Arg = "interpreter"

// DefaultListen is where E2B's clients look for it, by way of the sandbox's port.
const DefaultListen = "0.0.0.0:49999"

// bootIDPath differs between a sandbox and its copies.
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
	dir := flags.String("dir", "", "where contexts work that name no directory; /home/user if there is one, else the present one")
	languages := flags.String("languages", "python,javascript", "whose kernels are started at once; those that the image has no program for are left out")
	stdio := flags.Bool("stdio", false, "serve whoever holds the input and output, instead of an address")
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
	_ = server.Close() // what is under way ends with us
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// readBootID is what copies of this sandbox differ in.
func readBootID() string {
	id, err := os.ReadFile(bootIDPath)
	if err != nil {
		return "" // then there is nothing to tell copies by
	}
	return string(id)
}
