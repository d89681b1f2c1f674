package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// saveStarted creates a sandbox from a build's image, starts its command, and saves it when that is
// ready. If the recipe says so, or the provider cannot save the sandbox, it returns an empty
// snapshot: then each sandbox starts the command itself.
func (bs *Builds) saveStarted(ctx context.Context, build store.TemplateBuild, run *runningBuild) (n store.Snapshot, err error) {
	spec := sandpit.Spec{Image: build.Image, Resources: bs.o.Enforceable(bs.o.BuilderProvider, build.Resources), Network: build.Recipe.Network.Clone()}
	rec, err := bs.createSandbox(ctx, build.Owner, spec, false)
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, bs.removeSandbox(ctx, rec)) }()
	step := "start " + build.Recipe.Start
	run.log.beginStep(0, step)
	if err := runStartCommand(ctx, rec.currentInstance(), build.Recipe, run.log.writeOutput); err != nil {
		return n, &StepError{Step: step, Err: err}
	}
	if build.Recipe.StartAnew {
		return n, nil
	}
	if err := rec.lock(ctx); err != nil {
		return n, err
	}
	defer rec.unlock()
	n, err = bs.snapshots.saveSandbox(ctx, rec, store.Snapshot{ID: build.Snapshot, Build: build.ID})
	bs.snapshotUses.endExclusive(build.Snapshot)
	if errors.Is(err, sandpit.Unsupported) {
		run.log.writeOutput([]byte("each sandbox starts the command itself, since this one cannot be saved: " + err.Error() + "\n"))
		return store.Snapshot{}, nil
	}
	return n, err
}

// runStartCommand starts the command of a template in a sandbox and returns when it is ready.
//
// Invalid: the command has failed. Timeout: it was not ready in time. Both contain the last output.
func runStartCommand(ctx context.Context, i sandpit.Instance, r sandpit.Recipe, hear func(p []byte)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Ready.Within(),
		sandpit.Errorf(sandpit.Timeout, "the start command was not ready after %v", r.Ready.Within()))
	defer cancel()
	out := &outputTail{forward: hear}
	p, err := i.Guest().Start(ctx, sandpit.Command{Args: sandpit.ShellArgs(r.Start), Tag: "start", Stdout: out, Stderr: out})
	if err != nil {
		return causeOf(ctx, err)
	}
	failed, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		status, err := p.Wait(ctx)
		if err == nil && status.Code != 0 {
			err = sandpit.Errorf(sandpit.Invalid, "the start command ended with %v", status)
		}
		if err != nil { // a command that succeeds may have started a daemon
			failed <- err
		}
	}()
	err = causeOf(ctx, awaitReady(ctx, i, r.Ready, failed))
	cancel() // ends the wait; the command continues
	<-over
	if err == nil {
		return nil
	}
	words := "nothing"
	if text := out.String(); text != "" {
		words = text
	}
	return sandpit.Errorf(sandpit.CodeOf(err), "%w; last output: %s", err, words)
}

// awaitReady returns when the ready check succeeds, or the command has failed.
func awaitReady(ctx context.Context, i sandpit.Instance, r sandpit.Ready, failed <-chan error) error {
	for {
		ready, err := isReady(ctx, i, r)
		if ready || err != nil {
			return err
		}
		timer := time.NewTimer(r.Every())
		select {
		case <-timer.C:
		case err := <-failed:
			timer.Stop()
			return err
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// probeLimit bounds one ready check.
const probeLimit = 5 * time.Second

// isReady runs the ready check once. The error is that of a command that is refused.
func isReady(ctx context.Context, i sandpit.Instance, r sandpit.Ready) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	switch {
	case r.Command != "":
		ctx := withoutObservation(ctx) // repeated checks are not recorded
		p, err := i.Guest().Start(ctx, sandpit.Command{Args: sandpit.ShellArgs(r.Command), Timeout: probeLimit})
		if _, refused := errors.AsType[*refusedCommand](err); refused {
			return false, fmt.Errorf("ready check: %w", err)
		}
		if err != nil {
			return false, nil // not ready
		}
		status, err := p.Wait(ctx)
		return err == nil && status.Code == 0, nil
	case r.Port != 0:
		dialer, ok := as[sandpit.Dialer](i)
		if !ok {
			return respondsBelow(ctx, i, r.Port, "http://localhost/", 600), nil
		}
		conn, err := dialer.Dial(ctx, r.Port)
		if err == nil {
			_ = conn.Close() // nothing was written
		}
		return err == nil, nil
	case r.URL != "":
		u, err := url.Parse(r.URL)
		if err != nil {
			return false, nil // it was checked before
		}
		port := 80
		if text := u.Port(); text != "" {
			port, err = strconv.Atoi(text)
		}
		return err == nil && respondsBelow(ctx, i, port, r.URL, http.StatusBadRequest), nil
	}
	return true, nil
}

// respondsBelow reports whether the response to a request has a status below one.
func respondsBelow(ctx context.Context, i sandpit.Instance, port int, target string, below int) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := i.HTTP(port).RoundTrip(req)
	if err != nil {
		return false
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // reads the body, so that the server sees no error
	_ = resp.Body.Close()                          // only read from
	return resp.StatusCode < below
}

// outputTail keeps the end of what is written to it.
type outputTail struct {
	forward func(p []byte) // nil: none

	mu   sync.Mutex
	tail []byte
}

const maxOutputTail = 2000 // bytes

// Write implements io.Writer.
func (w *outputTail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = append(w.tail, p...)
	if more := len(w.tail) - maxOutputTail; more > 0 {
		w.tail = append(w.tail[:0], w.tail[more:]...)
	}
	if w.forward != nil {
		w.forward(p)
	}
	return len(p), nil
}

// String returns the end of what was written.
func (w *outputTail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(w.tail)), "\uFFFD")
}
