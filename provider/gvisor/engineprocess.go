package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// engineProcess is an engine as its owner has it.
type engineProcess struct {
	dir    string
	owner  *os.File      // the engine runs until this is closed
	log    *os.File      // a file without a name
	ended  chan struct{} // closed when the reaper, and so the engine, has ended
	reaper *exec.Cmd
	// expected means that its end is not reported.
	expected atomic.Bool
}

func (e *engineProcess) isAlive() bool {
	select {
	case <-e.ended:
		return false
	default:
		_, err := os.Lstat(e.dir) // removed before the reaper ends
		return err == nil
	}
}

// release detaches the engine: a lasting one keeps running as long as it has sandboxes.
func (e *engineProcess) release() {
	e.expected.Store(true)
	_ = e.owner.Close()
	_ = e.log.Close()
}

// stop ends the engine with everything in it, and waits for its end.
func (e *engineProcess) stop() error {
	e.expected.Store(true)
	_ = e.owner.Close()
	<-e.ended
	_ = e.log.Close()
	if err := errors.Join(cgroup.RemoveRecorded(filepath.Join(e.dir, cgroupsName)), os.RemoveAll(e.dir)); err != nil { // exists only if the reaper was killed
		return fmt.Errorf("remove the engine's directory: %w", err)
	}
	return nil
}

// logStart returns the start of the engine's log for an error message: a program that crashes
// prints the reason first.
func (e *engineProcess) logStart() string {
	buf := make([]byte, 1000)
	n, _ := e.log.ReadAt(buf, 0) // as much as it has
	if n == 0 {
		return "its log is empty"
	}
	return strings.TrimSpace(string(buf[:n]))
}

// startEngine returns the provider's engine. It starts one if none runs or the last one has
// ended.
func (p *Provider) startEngine(ctx context.Context) (*engineProcess, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the provider is closed")
	}
	if p.engine != nil && p.engine.isAlive() {
		return p.engine, nil
	}
	if p.engine != nil {
		_ = p.engine.stop() // what remains is swept later
		p.engine = nil
	}
	e, err := p.newEngineProcess(ctx)
	if err != nil {
		return nil, err
	}
	p.engine = e
	return e, nil
}

func (p *Provider) newEngineProcess(ctx context.Context) (*engineProcess, error) {
	e := &engineProcess{
		dir:   filepath.Join(p.engines, "e"+strings.ToLower(rand.Text()[:12])),
		ended: make(chan struct{}),
	}
	logFD, err := unix.MemfdCreate("sandpit-log", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e.log = os.NewFile(uintptr(logFD), "log")
	ownerRead, ownerWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, e.log.Close())
	}
	defer ownerRead.Close()
	e.owner = ownerWrite
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, e.log.Close(), e.owner.Close())
	}
	defer readyRead.Close()
	defer readyWrite.Close()
	args := []string{reaperRole, e.dir}
	if p.cfg.Lasting {
		args = append(args, lastingArgument)
	}
	args = append(args, p.cfg.ServerGroup.reaperArguments()...)
	e.reaper = &exec.Cmd{
		Path:        p.binary.path,
		Args:        args,
		Env:         []string{},
		ExtraFiles:  []*os.File{ownerRead, readyWrite, e.log}, // see reaperOwnerFD
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := e.reaper.Start(); err != nil {
		return nil, fmt.Errorf("start the engine: %w", errors.Join(err, e.log.Close(), e.owner.Close()))
	}
	go func() {
		defer close(e.ended)
		_ = e.reaper.Wait() // how it ended does not matter
		if p.cfg.EngineLost != nil && !e.expected.Load() {
			p.cfg.EngineLost(e.logStart())
		}
	}()
	_ = readyWrite.Close()
	if err := e.waitReady(ctx, readyRead); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// waitReady waits for the engine's report. An engine that ended without one has left the reason in
// its log.
func (e *engineProcess) waitReady(ctx context.Context, ready *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	var rep readyReport
	if err := json.NewDecoder(ready).Decode(&rep); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return sandpit.Errorf(sandpit.Internal, "the engine ended while starting: %s", e.logStart())
	}
	return rep.Error.toError()
}
