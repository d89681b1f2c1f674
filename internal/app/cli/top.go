package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// topCommand has the options of sandpit top.
type topCommand struct {
	output
	interval time.Duration
}

func newTop(a *app) *cobra.Command {
	var o topCommand
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch the resource usage of the running sandboxes of a server",
		Long: `Watch the resource usage of the running sandboxes of a server, the busiest first. 100 % is
one CPU. Press q to quit. Without a terminal, and as JSON, it measures once, over the
interval.`,
		Example:           "  sandpit top\n  sandpit top --interval 5s",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "`time` between two measurements")
	return cmd
}

func (o *topCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	const least, most = 100 * time.Millisecond, time.Hour
	if o.interval < least || o.interval > most {
		return sandpit.Errorf(sandpit.Invalid, "--interval %s: want a time from %s to %s", o.interval, least, most)
	}
	fd, typed := terminalOf(a.In)
	_, seen := terminalOf(a.Out)
	if !typed || !seen || o.isJSON() {
		return topOnce(ctx, a, c, o.output, o.interval)
	}
	return topLive(ctx, a, c, fd, o.interval)
}

func topOnce(ctx context.Context, a *app, c *client.Client, o output, interval time.Duration) error {
	before, err := measureAll(ctx, c, nil)
	if err != nil {
		return err
	}
	select {
	case <-time.After(interval):
	case <-ctx.Done():
		return ctx.Err()
	}
	list, err := measureAll(ctx, c, before)
	if err != nil {
		return err
	}
	return a.showListing(o, measuredListing(list, true))
}

// topLive draws the table repeatedly until q, Escape or Ctrl-C is pressed.
func topLive(ctx context.Context, a *app, c *client.Client, fd int, interval time.Duration) error {
	restore, err := setTerminalRaw(a.In)
	if err != nil {
		return err
	}
	defer restore()
	const screen, back = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l" // the alternate screen without a cursor
	if _, err := io.WriteString(a.Out, screen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(a.Out, back) }() // a terminal that is gone cannot be restored
	var list []sandboxUsage
	for {
		if list, err = measureAll(ctx, c, list); err != nil {
			return err
		}
		if _, err := a.Out.Write(topScreen(a, c, list)); err != nil {
			return err
		}
		if quit, err := waitForQuitKey(ctx, fd, a.In, interval); quit || err != nil {
			return err
		}
	}
}

// topScreen returns one drawing in the size of the terminal.
func topScreen(a *app, c *client.Client, list []sandboxUsage) []byte {
	var table bytes.Buffer
	fmt.Fprintf(&table, "%s on %s, %s (q quits)\n\n", formatCount(len(list), "sandbox", "sandboxes"),
		escapeText(c.URL()), time.Now().Format(time.TimeOnly))
	_ = writeTable(&table, measuredListing(list, true).rows, nil) // writes to memory do not fail
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	at := a.terminalSize()
	const home, clearLine, clearRest = "\x1b[H", "\x1b[K", "\x1b[J"
	var text strings.Builder
	text.WriteString(home)
	for i, line := range lines[:min(len(lines), int(at.Rows))] {
		if i > 0 {
			text.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > int(at.Cols) {
			line = string(runes[:at.Cols])
		}
		text.WriteString(line + clearLine)
	}
	return []byte(text.String() + clearRest)
}

// waitForQuitKey waits for a while, and reports whether a key was pressed that quits.
func waitForQuitKey(ctx context.Context, fd int, in io.Reader, wait time.Duration) (quit bool, err error) {
	const slice = 100 * time.Millisecond
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return true, err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(slice/time.Millisecond)) //nolint:gosec // a descriptor fits
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return true, sandpit.Errorf(sandpit.Internal, "wait for a key: %w", err)
		}
		keys := make([]byte, 32)
		n, err = in.Read(keys)
		if err != nil && n == 0 {
			return true, nil // the terminal is gone
		}
		if bytes.ContainsAny(keys[:n], "qQ\x1b\x03\x04") {
			return true, nil
		}
	}
	return false, nil
}

// measureAll measures the running sandboxes, the busiest first. Sandboxes that end meanwhile are
// left out.
func measureAll(ctx context.Context, c *client.Client, before []sandboxUsage) ([]sandboxUsage, error) {
	running, err := c.Sandboxes.List(ctx, client.Filter{States: []sandpit.State{sandpit.StateRunning}})
	if err != nil {
		return nil, err
	}
	old := map[sandpit.ID]sandpit.Stats{}
	for _, m := range before {
		old[m.ID] = m.Stats
	}
	all := make([]sandboxUsage, len(running))
	errs := runParallel(len(running), func(i int) error {
		id := running[i].ID
		s, err := c.Sandboxes.Stats(ctx, id)
		all[i] = sandboxUsage{ID: id, Name: running[i].Spec.Name, Stats: s, cpus: busyCPUs(old[id], s)}
		return err
	})
	list := []sandboxUsage{}
	for i, err := range errs {
		switch sandpit.CodeOf(err) {
		case "":
			list = append(list, all[i])
		case sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Unsupported:
		default:
			return nil, err
		}
	}
	slices.SortFunc(list, func(x, y sandboxUsage) int {
		return cmp.Or(cmp.Compare(y.cpus, x.cpus), cmp.Compare(y.Memory, x.Memory), cmp.Compare(x.ID, y.ID))
	})
	return list, nil
}

// busyCPUs returns the number of CPUs that were busy between two measurements; below zero is
// unknown.
func busyCPUs(before, now sandpit.Stats) float64 {
	span := now.At.Sub(before.At)
	if before.At.IsZero() || span <= 0 || now.CPU < before.CPU {
		return -1
	}
	return float64(now.CPU-before.CPU) / float64(span)
}
