package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// enginePackage is the program with the engine.
const enginePackage = "github.com/sandpit-dev/sandpit/cmd/sandpit"

// buildEngine builds the engine like a release. This program cannot be the engine, because "go run"
// builds it with other settings.
func buildEngine(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "engine")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, enginePackage)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if err := run(cmd); err != nil {
		return "", fmt.Errorf("build the engine: %w", err)
	}
	return path, nil
}

// smallGuest reports whether this program includes the small guest.
func smallGuest() bool { return guestbin.Has(runtime.GOARCH) }

// openProvider returns a provider with its files in dir, and its images in a directory that others
// may share.
func openProvider(dir, images, engine string) (*gvisor.Provider, error) {
	for _, sub := range []string{"run", "scratch", "stopped"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	store, err := image.Open(images, image.Options{})
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Config{
		RuntimeDir:  filepath.Join(dir, "run"),
		ScratchDir:  filepath.Join(dir, "scratch"),
		KeepDir:     filepath.Join(dir, "stopped"),
		SnapshotDir: filepath.Join(dir, "snapshots"),
		SuspendDir:  filepath.Join(dir, "suspended"),
		Images:      store,
		Engine:      engine,
		Defaults:    sandpit.Resources{Memory: 512 << 20, CPUs: 1, Disk: 10 << 30, PIDs: 1024},
	})
}

// newSandpit returns sandpit in process.
func newSandpit(name string, p sandpit.Provider, root string) contestant {
	start := func(ctx context.Context) (*sandpitBox, error) {
		inst, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(root)})
		if err != nil {
			return nil, withHint(err)
		}
		w, err := workspace.New(inst.Guest(), workspace.Options{})
		if err != nil {
			return nil, errors.Join(err, inst.Destroy(ctx))
		}
		return &sandpitBox{inst: inst, w: w}, nil
	}
	return contestant{
		name:  name,
		start: asBox(start),
		life: func(ctx context.Context) (life, error) {
			began := time.Now()
			b, err := start(ctx)
			if err != nil {
				return life{}, err
			}
			var seen firstOutput
			_, err = b.w.Run(ctx, sandpit.Command{Args: []string{"echo", word}, Stdout: &seen})
			err = errors.Join(err, b.Destroy(ctx))
			if err == nil && seen.text() != word+"\n" {
				err = fmt.Errorf("echo printed %q", seen.text())
			}
			return life{first: seen.at.Sub(began), whole: time.Since(began)}, err
		},
	}
}

// newSandpitCLI returns sandpit through its command line. Each command is a new process with its own
// engine, below the directories of env.
func newSandpitCLI(engine, dir, root string) contestant {
	return contestant{
		name:     bySandpitCLI,
		runsOnly: true,
		life: func(ctx context.Context) (life, error) {
			cmd := exec.CommandContext(ctx, engine, "run", root, "--", "echo", word)
			cmd.Env = append(cmd.Environ(),
				"SANDPIT_CONFIG="+os.DevNull,
				"SANDPIT_STATE_DIR="+filepath.Join(dir, "state"),
				"SANDPIT_CACHE_DIR="+filepath.Join(dir, "cache"),
				"SANDPIT_RUNTIME_DIR="+filepath.Join(dir, "run"),
			)
			return lifeOf(cmd)
		},
	}
}

type sandpitBox struct {
	inst sandpit.Instance
	w    *workspace.Workspace
}

func (b *sandpitBox) Run(ctx context.Context, args ...string) error {
	_, err := b.Output(ctx, args...)
	return err
}

// Output implements speaker.
func (b *sandpitBox) Output(ctx context.Context, args ...string) (string, error) {
	r, err := b.w.Run(ctx, sandpit.Command{Args: args})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("%s: exit status %d: %s", args[0], r.ExitCode, lastWords(r.Stdout+r.Stderr))
	}
	return r.Stdout, err
}

func (b *sandpitBox) CopyIn(ctx context.Context, source, target string) error {
	return b.w.CopyTo(ctx, source, target)
}

func (b *sandpitBox) CopyOut(ctx context.Context, source, target string) error {
	_, err := b.w.CopyFrom(ctx, source, target)
	return err
}

func (b *sandpitBox) Destroy(ctx context.Context) error { return b.inst.Destroy(ctx) }

// firstOutput collects output and records when it began.
type firstOutput struct {
	mu  sync.Mutex
	at  time.Time
	buf bytes.Buffer
}

func (f *firstOutput) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.buf.Write(p)
}

func (f *firstOutput) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buf.String()
}

// withHint adds the hint to the text, for people.
func withHint(err error) error {
	if hint := sandpit.HintOf(err); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}
