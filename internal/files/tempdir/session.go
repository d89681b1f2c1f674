package tempdir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Session holds the temporary directories of a program that has no other record of them and may be killed at any
// moment: Sweep removes what a killed program has left. All methods may be called concurrently.
type Session struct {
	mu    sync.Mutex
	note  *os.File // locked while the session lives; it lists the directories
	shown []string
}

const notePrefix = "session-"

// maxNote is how much of a note is read, in bytes.
const maxNote = 1 << 20

// Begin starts a session with a note in a directory that is closed to other users.
func Begin(notes string) (*Session, error) {
	for {
		note, err := os.CreateTemp(notes, notePrefix)
		if err != nil {
			return nil, fmt.Errorf("note temporary directories: %w", err)
		}
		err = unix.Flock(int(note.Fd()), unix.LOCK_EX)
		if err == nil && isLinked(note) {
			return &Session{note: note}, nil
		}
		_ = note.Close() // nothing was written
		if err != nil {
			return nil, fmt.Errorf("note temporary directories: %w", err)
		}
	}
}

// isLinked reports whether an open file still has a name.
func isLinked(f *os.File) bool {
	var stat unix.Stat_t
	return unix.Fstat(int(f.Fd()), &stat) == nil && stat.Nlink > 0
}

// Make is the function Make for a directory that End removes.
func (s *Session) Make(shown string) error {
	if _, err := outerOf(shown); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The note comes first: a program that is killed in between leaves only the name of a directory that does not
	// exist.
	if _, err := s.note.WriteString(strconv.Quote(shown) + "\n"); err != nil {
		return fmt.Errorf("note temporary directories: %w", err)
	}
	s.shown = append(s.shown, shown)
	return Make(shown)
}

// End removes all directories of the session. Sweep removes those that End could not. It must be called once.
func (s *Session) End(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(removeNoted(ctx, s.note, s.shown), s.note.Close())
}

// removeNoted removes directories and then their note.
func removeNoted(ctx context.Context, note *os.File, shown []string) error {
	var errs []error
	for _, path := range shown {
		errs = append(errs, Remove(ctx, path))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(note.Name())
}

// Sweep removes what killed sessions have left. It skips live sessions.
func Sweep(ctx context.Context, notes string) error {
	list, err := filepath.Glob(filepath.Join(notes, notePrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range list {
		errs = append(errs, sweepSession(ctx, path))
	}
	return errors.Join(errs...)
}

func sweepSession(ctx context.Context, path string) error {
	note, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer note.Close()
	err = unix.Flock(int(note.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !isLinked(note) {
		return nil // it is alive, or another sweep has removed it
	}
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "lock %s: %w", path, err)
	}
	var shown []string
	for lines := bufio.NewScanner(io.LimitReader(note, maxNote)); lines.Scan(); {
		// An incomplete line was being written when its program was killed.
		if name, err := strconv.Unquote(strings.TrimSpace(lines.Text())); err == nil {
			shown = append(shown, name)
		}
	}
	return removeNoted(ctx, note, shown)
}
