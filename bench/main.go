package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(bench(os.Args[1:], os.Stdout, os.Stderr)) }

// bench is the program; it returns the exit code.
func bench(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if text := os.Getenv(victimVariable); text != "" { //nolint:forbidigo // the bench's own word to its child
		if err := beVictim(ctx, text, stdout); err != nil {
			fmt.Fprintln(stderr, "bench:", err)
			return 1
		}
		return 0
	}
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	r, err := measure(ctx, o, stderr)
	if r != nil {
		err = errors.Join(err, publish(r, o, stdout))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if o.check && missed(r.Targets) {
		return 1
	}
	return 0
}
