package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
)

// tempNotes is where programs note their temporary directories in case they are killed.
// A server has its store for that.
func tempNotes(cfg config.Config) string { return filepath.Join(cfg.StateDir, "temporary") }

// makeTempDirs makes the temporary directories that mounts ask for, and says in them
// where they are.
func (l *Local) makeTempDirs(mounts []sandpit.Mount) error {
	for i, m := range mounts {
		if err := m.CheckSource(); err != nil {
			return err
		}
		if !m.Temporary {
			continue
		}
		parent, err := tempdir.Check(l.cfg.TempDir)
		if err != nil {
			return err
		}
		session, err := l.tempSession()
		if err != nil {
			return err
		}
		mounts[i].Source = tempdir.Name(parent, m.Target)
		if m.Keep {
			err = tempdir.Make(mounts[i].Source)
			l.showNotice(m.Target + " is kept in " + mounts[i].Source)
		} else {
			err = session.Make(mounts[i].Source)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Local) showNotice(text string) {
	if l.hear.Left != nil {
		l.hear.Left(text)
	}
}

func (l *Local) tempSession() (*tempdir.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.temp != nil {
		return l.temp, nil
	}
	notes := tempNotes(l.cfg)
	for _, dir := range []string{l.cfg.StateDir, notes} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	var err error
	l.temp, err = tempdir.Begin(notes)
	return l.temp, err
}

// sweepTempDirs removes temporary directories of killed programs. It reports those that it
// cannot remove and tries again the next time.
func (l *Local) sweepTempDirs() {
	ctx, cancel := context.WithTimeout(context.Background(), destroyLimit)
	defer cancel()
	if err := tempdir.Sweep(ctx, tempNotes(l.cfg)); err != nil {
		l.showNotice("a temporary directory of a program that was killed is still there: " + err.Error())
	}
}

// endTempDirs removes the temporary directories of the sandboxes, which are gone.
func (l *Local) endTempDirs() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.temp == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), destroyLimit)
	defer cancel()
	return l.temp.End(ctx)
}
