package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// An engine that ends by itself has broken down, and its sandboxes with it. Its reaper then
// leaves a file, in a directory beside that of the engines, which says how it ended and
// what it said at last. Whoever was waiting for an answer finds it there, and so does a
// person later.
const (
	brokenName        = "broken"
	maxBreakdowns     = 16       // files; the oldest go first
	maxBreakdownLog   = 64 << 10 // bytes of a file
	maxBreakdownQuote = 300      // bytes of it in an error

	// breakdownLimit is how long a reaper may take to leave the file.
	breakdownLimit = 2 * time.Second
	breakdownPoll  = 5 * time.Millisecond
)

// brokenPath is where the reaper of the engine with the directory leaves the file.
func brokenPath(engine string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(engine)), brokenName, filepath.Base(engine))
}

// writeBreakdown writes down how an engine ended, and what it said.
func writeBreakdown(engine, how string, log *os.File) error {
	path := brokenPath(engine)
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	words, err := io.ReadAll(io.NewSectionReader(log, 0, maxBreakdownLog))
	if err != nil {
		return err
	}
	half := path + ".tmp"
	if err := os.WriteFile(half, append([]byte(how+"\n"), words...), 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(half, path), removeOldBreakdowns(dir))
}

// removeOldBreakdowns removes the oldest files of too many.
func removeOldBreakdowns(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // else it was removed meanwhile
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b os.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	var errs []error
	for _, info := range all[min(maxBreakdowns, len(all)):] {
		if err := os.Remove(filepath.Join(dir, info.Name())); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// describeBreakdown returns how an engine broke down that does not answer, "" if it did not: then it
// ended as it should, was killed with its reaper, or lives.
func describeBreakdown(ctx context.Context, engine string) string {
	limit := time.NewTimer(breakdownLimit)
	defer limit.Stop()
	for {
		ended := engineEnded(engine)
		text, err := os.ReadFile(brokenPath(engine))
		if err == nil {
			return quoteBreakdown(string(text))
		}
		if ended {
			return ""
		}
		select {
		case <-time.After(breakdownPoll):
		case <-limit.C:
			return ""
		case <-ctx.Done():
			return ""
		}
	}
}

// engineEnded reports whether an engine and its reaper have ended: they hold a lock.
func engineEnded(engine string) bool {
	f, err := lockFile(filepath.Join(engine, lockName), unix.LOCK_SH|unix.LOCK_NB)
	if f != nil {
		_ = f.Close()
	}
	return !errors.Is(err, unix.EWOULDBLOCK)
}

// quoteBreakdown makes one line of what a reaper has left.
func quoteBreakdown(text string) string {
	how, words, _ := strings.Cut(text, "\n")
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n\n") // a break-down's reason comes before its places
	if words == "" {
		return how
	}
	return fmt.Sprintf("%s, %.*q", how, maxBreakdownQuote, words)
}

// brokenError adds to the failure of a call to an engine how that broke down.
func brokenError(ctx context.Context, engine string, err error) error {
	how := describeBreakdown(ctx, engine)
	if how == "" {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "the sandbox's engine broke down: %s: %w", how, err),
		"what it said is in "+brokenPath(engine))
}

// engineEnd is the reason for the end of a sandbox that went with its engine.
func engineEnd(ctx context.Context, engine string) string {
	if how := describeBreakdown(ctx, engine); how != "" {
		return "the sandbox's engine broke down: " + how
	}
	return "the sandbox's engine has ended"
}
