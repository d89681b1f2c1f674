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
	brokenName = "broken"
	mostBroken = 16       // files; the oldest go first
	maxWords   = 64 << 10 // bytes of a file
	maxQuoted  = 300      // bytes of it in an error

	// wordsLimit is how long a reaper may take to leave the file.
	wordsLimit = 2 * time.Second
	wordsPause = 5 * time.Millisecond
)

// brokenPath is where the reaper of the engine with the directory leaves the file.
func brokenPath(engine string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(engine)), brokenName, filepath.Base(engine))
}

// leaveWords writes down how an engine ended, and what it said.
func leaveWords(engine, how string, log *os.File) error {
	path := brokenPath(engine)
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	words, err := io.ReadAll(io.NewSectionReader(log, 0, maxWords))
	if err != nil {
		return err
	}
	half := path + ".tmp"
	if err := os.WriteFile(half, append([]byte(how+"\n"), words...), 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(half, path), forgetWords(dir))
}

// forgetWords removes the oldest files of too many.
func forgetWords(dir string) error {
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
	for _, info := range all[min(mostBroken, len(all)):] {
		if err := os.Remove(filepath.Join(dir, info.Name())); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// broke returns how an engine broke down that does not answer, "" if it did not: then it
// ended as it should, was killed with its reaper, or lives.
func broke(ctx context.Context, engine string) string {
	limit := time.NewTimer(wordsLimit)
	defer limit.Stop()
	for {
		ended := engineEnded(engine)
		text, err := os.ReadFile(brokenPath(engine))
		if err == nil {
			return quoteWords(string(text))
		}
		if ended {
			return ""
		}
		select {
		case <-time.After(wordsPause):
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

// quoteWords makes one line of what a reaper has left.
func quoteWords(text string) string {
	how, words, _ := strings.Cut(text, "\n")
	words, _, _ = strings.Cut(strings.TrimSpace(words), "\n\n") // a break-down's reason comes before its places
	if words == "" {
		return how
	}
	return fmt.Sprintf("%s, %.*q", how, maxQuoted, words)
}

// brokenError adds to the failure of a call to an engine how that broke down.
func brokenError(ctx context.Context, engine string, err error) error {
	how := broke(ctx, engine)
	if how == "" {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "the sandbox's engine broke down: %s: %w", how, err),
		"what it said is in "+brokenPath(engine))
}

// engineEnd is the reason for the end of a sandbox that went with its engine.
func engineEnd(ctx context.Context, engine string) string {
	if how := broke(ctx, engine); how != "" {
		return "the sandbox's engine broke down: " + how
	}
	return "the sandbox's engine has ended"
}
