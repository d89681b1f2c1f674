package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// measured is a sandbox and what it uses.
type measured struct {
	ID   sandpit.ID `json:"id"`
	Name string     `json:"name,omitempty"`
	sandpit.Stats

	// cpus is how many processors it kept busy since the measurement before; below
	// zero is unknown.
	cpus float64
}

func (a *app) newStats() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "stats [flags] [SANDBOX...]",
		Short: "Show what sandboxes use, or what the server is busy with",
		Long: `Show what sandboxes use. CPU is the time used since the start. As JSON it is a
list, and without a SANDBOX one document about the server.`,
		Example: `  sandpit stats
  sandpit stats work
  sandpit stats -o json $(sandpit ls -q --state running)`,
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				return a.serverStats(ctx, c, o)
			}
			ids, missing := (&finder{client: c}).findAll(ctx, args)
			list := make([]measured, len(ids))
			errs := parallel(indices(ids), func(i int) error {
				box, err := c.Sandboxes.Get(ctx, ids[i])
				if err != nil {
					return err
				}
				list[i] = measured{ID: ids[i], Name: box.Spec.Name}
				list[i].Stats, err = box.Stats(ctx)
				return err
			})
			var found []measured
			for i, err := range errs {
				if err == nil {
					found = append(found, list[i])
				}
			}
			if len(found) > 0 {
				errs = append(errs, a.show(o, measuredListing(found, false)))
			}
			return errors.Join(append(errs, missing)...)
		}),
	}
	o.add(cmd, "")
	return cmd
}

func (a *app) serverStats(ctx context.Context, c *client.Client, o output) error {
	s, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	seconds := func(n float64) string { return time.Duration(n * float64(time.Second)).String() }
	return a.show(o, listing{document: s, rows: [][]string{
		{"Sandboxes", strconv.Itoa(s.TotalSandboxes) + " of " + strconv.Itoa(s.MaxSandboxes)},
		{"Operations", strconv.Itoa(s.ActiveOperations)},
		{"Idle timeout", seconds(s.IdleTimeout)},
		{"Cleanup", "every " + seconds(s.CleanupInterval)},
		{"Shutting down", strconv.FormatBool(s.IsShuttingDown)},
	}})
}

func measuredListing(list []measured, live bool) listing {
	cpu := "CPU TIME"
	if live {
		cpu = "CPU"
	}
	l := listing{document: list, rows: [][]string{{"SANDBOX", "NAME", cpu, "MEMORY", "LIMIT", "DISK", "PIDS", "IN", "OUT", "KILLED"}}}
	for _, m := range list {
		used := m.CPU.Round(time.Millisecond).String()
		if live {
			used = percent(m.cpus)
		}
		limit := "none"
		if m.Limits.Memory > 0 {
			limit = size(m.Limits.Memory)
		}
		l.rows = append(l.rows, []string{
			string(m.ID), orElse(m.Name, "-"), used, size(m.Memory), limit, size(m.Disk),
			strconv.Itoa(m.PIDs), size(m.Received), size(m.Sent), strconv.FormatInt(m.OOMKills, 10),
		})
	}
	return l
}

func percent(cpus float64) string {
	if cpus < 0 {
		return "-"
	}
	return strconv.FormatFloat(cpus*100, 'f', 1, 64) + " %"
}

func (a *app) newTop() *cobra.Command {
	var o output
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Watch what the running sandboxes of a server use",
		Long: `Watch what the running sandboxes of a server use, the busiest first. 100 % is one
processor. q ends it. Without a terminal, and as JSON, it measures once, over the
interval.`,
		Example:           "  sandpit top\n  sandpit top --interval 5s",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			const least, most = 100 * time.Millisecond, time.Hour
			if interval < least || interval > most {
				return sandpit.Errorf(sandpit.Invalid, "--interval %s: want a time from %s to %s", interval, least, most)
			}
			fd, typed := terminalOf(a.In)
			_, seen := terminalOf(a.Out)
			if !typed || !seen || o.json() {
				return a.topOnce(ctx, c, o, interval)
			}
			return a.topLive(ctx, c, fd, interval)
		}),
	}
	o.add(cmd, "")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "`time` between two measurements")
	return cmd
}

func (a *app) topOnce(ctx context.Context, c *client.Client, o output, interval time.Duration) error {
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
	return a.show(o, measuredListing(list, true))
}

// topLive draws again and again until q, escape or Ctrl-C is pressed.
func (a *app) topLive(ctx context.Context, c *client.Client, fd int, interval time.Duration) error {
	restore, err := makeRaw(a.In)
	if err != nil {
		return err
	}
	defer restore()
	const screen, back = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l" // a screen of its own without a cursor
	if _, err := io.WriteString(a.Out, screen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(a.Out, back) }() // a terminal that is gone needs nothing back
	var list []measured
	for {
		if list, err = measureAll(ctx, c, list); err != nil {
			return err
		}
		if _, err := a.Out.Write(a.topScreen(c, list)); err != nil {
			return err
		}
		if quit, err := pressed(ctx, fd, a.In, interval); quit || err != nil {
			return err
		}
	}
}

// topScreen is one drawing, as large as the terminal.
func (a *app) topScreen(c *client.Client, list []measured) []byte {
	var table bytes.Buffer
	fmt.Fprintf(&table, "%s on %s, %s (q quits)\n\n", plural(len(list), "sandbox", "sandboxes"),
		safe(c.URL()), time.Now().Format(time.TimeOnly))
	_ = layTable(&table, measuredListing(list, true).rows, nil) // memory does not fail
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	at := a.size()
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

// pressed waits for a while, or for a key that means the end.
func pressed(ctx context.Context, fd int, in io.Reader, wait time.Duration) (quit bool, err error) {
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
			return true, nil // the terminal is gone: nobody watches
		}
		if bytes.ContainsAny(keys[:n], "qQ\x1b\x03\x04") {
			return true, nil
		}
	}
	return false, nil
}

// measureAll measures what runs, the busiest first. Those that end meanwhile are
// left out.
func measureAll(ctx context.Context, c *client.Client, before []measured) ([]measured, error) {
	running, err := c.Sandboxes.List(ctx, client.Filter{States: []sandpit.State{sandpit.StateRunning}})
	if err != nil {
		return nil, err
	}
	old := map[sandpit.ID]sandpit.Stats{}
	for _, m := range before {
		old[m.ID] = m.Stats
	}
	all := make([]measured, len(running))
	errs := parallel(indices(running), func(i int) error {
		id := running[i].ID
		s, err := c.Sandboxes.Stats(ctx, id)
		all[i] = measured{ID: id, Name: running[i].Spec.Name, Stats: s, cpus: busy(old[id], s)}
		return err
	})
	list := []measured{}
	for i, err := range errs {
		switch sandpit.CodeOf(err) {
		case "":
			list = append(list, all[i])
		case sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Unsupported:
		default:
			return nil, err
		}
	}
	slices.SortFunc(list, func(x, y measured) int {
		return cmp.Or(cmp.Compare(y.cpus, x.cpus), cmp.Compare(y.Memory, x.Memory), cmp.Compare(x.ID, y.ID))
	})
	return list, nil
}

// busy is how many processors were kept busy between two measurements.
func busy(before, now sandpit.Stats) float64 {
	span := now.At.Sub(before.At)
	if before.At.IsZero() || span <= 0 || now.CPU < before.CPU {
		return -1
	}
	return float64(now.CPU-before.CPU) / float64(span)
}
