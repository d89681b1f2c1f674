package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// diskProbe finds out whether files can be written, by doing it. A disk that hangs keeps one
// goroutine for each directory, and no caller.
type diskProbe struct {
	mu   sync.Mutex
	busy map[string]*probing // by directory
}

// probing is a probe that has not ended.
type probing struct {
	done chan struct{} // closed when err is set
	err  error
}

// probeName is the file that is written and removed.
const probeName = ".ready"

// checkDir writes, syncs and removes a small file in a directory.
//
// Timeout: it takes longer than ctx allows.
func (p *diskProbe) checkDir(ctx context.Context, dir string) error {
	p.mu.Lock()
	one := p.busy[dir]
	if one == nil {
		one = &probing{done: make(chan struct{})}
		if p.busy == nil {
			p.busy = make(map[string]*probing)
		}
		p.busy[dir] = one
		go func() {
			defer close(one.done)
			one.err = writeProbe(filepath.Join(dir, probeName))
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.busy, dir)
		}()
	}
	p.mu.Unlock()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return sandpit.Errorf(sandpit.Timeout, "writing a file takes too long")
	}
}

// waitForProbes returns when all probes have ended, or ctx has.
func (p *diskProbe) waitForProbes(ctx context.Context) error {
	for {
		p.mu.Lock()
		var one *probing
		for _, one = range p.busy {
			break
		}
		p.mu.Unlock()
		if one == nil {
			return nil
		}
		select {
		case <-one.done:
		case <-ctx.Done():
			return sandpit.Errorf(sandpit.Timeout, "a disk does not answer")
		}
	}
}

func writeProbe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(path))
}

// checkDisks reports whether the server can write its files and has space for more.
func (s *service) checkDisks(ctx context.Context) error {
	for _, dir := range []struct {
		name, path string
		room       bool // that has to stay free
	}{
		{"state_dir", s.cfg.StateDir, true}, {"cache_dir", s.cfg.CacheDir, true}, {"runtime_dir", s.cfg.RuntimeDir, false},
	} {
		err := s.probe.checkDir(ctx, dir.path)
		if err == nil && dir.room {
			disk, at := s.disks.At(dir.path)
			err = errors.Join(at, disk.Check())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", dir.name, err)
		}
	}
	return nil
}
