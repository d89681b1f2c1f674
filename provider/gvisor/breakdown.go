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

// When an engine ends unexpectedly, and its sandboxes with it, its reaper leaves a file in a
// directory beside that of the engines. The file has how the engine ended, and its log.
// It explains failed calls, and helps the administrator later.
const (
	brokenName        = "broken"
	maxBreakdowns     = 16       // files; the oldest are removed first
	maxBreakdownLog   = 64 << 10 // bytes of a file
	maxBreakdownQuote = 300      // bytes of it in an error

	// breakdownLimit is how long a reaper may take to write the file.
	breakdownLimit = 2 * time.Second
	breakdownPoll  = 5 * time.Millisecond
)

// brokenPath returns where the reaper of the engine with a directory leaves the file.
func brokenPath(engine string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(engine)), brokenName, filepath.Base(engine))
}

// writeBreakdown writes how an engine ended, and its log.
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
	draft := path + ".tmp"
	if err := os.WriteFile(draft, append([]byte(how+"\n"), words...), 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(draft, path), removeOldBreakdowns(dir))
}

// removeOldBreakdowns removes the oldest files above the limit.
func removeOldBreakdowns(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // otherwise it was removed meanwhile
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

// describeBreakdown returns how an engine that does not respond has failed. It returns "" if the
// engine did not fail: it ended as intended, was killed with its reaper, or is running.
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

// engineEnded reports whether an engine and its reaper have ended, by their lock.
func engineEnded(engine string) bool {
	f, err := lockFile(filepath.Join(engine, lockName), unix.LOCK_SH|unix.LOCK_NB)
	if f != nil {
		_ = f.Close()
	}
	return !errors.Is(err, unix.EWOULDBLOCK)
}

// quoteBreakdown returns the file as one line.
func quoteBreakdown(text string) string {
	how, words, _ := strings.Cut(text, "\n")
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n\n") // the reason of a crash precedes its stack traces
	if words == "" {
		return how
	}
	return fmt.Sprintf("%s, %.*q", how, maxBreakdownQuote, words)
}

// brokenError adds to a failed call how the engine failed.
func brokenError(ctx context.Context, engine string, err error) error {
	how := describeBreakdown(ctx, engine)
	if how == "" {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "the sandbox's engine broke down: %s: %w", how, err),
		"its log is in "+brokenPath(engine))
}

// engineEnd returns the reason for the end of a sandbox that ended with its engine.
func engineEnd(ctx context.Context, engine string) string {
	if how := describeBreakdown(ctx, engine); how != "" {
		return "the sandbox's engine broke down: " + how
	}
	return "the sandbox's engine has ended"
}
