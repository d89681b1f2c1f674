package interpreter

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Patience is how long code may keep running after an interrupt before its kernel is killed.
const Patience = 5 * time.Second

// aliveInterval is how often a run without output sends Alive.
const aliveInterval = 5 * time.Second

// markTime is how long the service waits for the marks after a kernel's last line; a program can have closed the
// streams that carry them.
const markTime = 2 * time.Second

// errNotBegun is the error of a run whose kernel had ended unexpectedly before the run began.
var errNotBegun = errors.New("the kernel had ended before the run began")

// execution is one run in a kernel.
type execution struct {
	kernel *kernel
	job    job
	emit   func(Event) error
	failed error // error of emit; it is not called again
	begun  bool  // reported by the kernel
	done   bool  // reported by the kernel
	last   bool  // the kernel ends after this run
	marked map[Stream]bool
	stop   func() // cancels the run
}

// executeJob runs code in the kernel and emits its events. When ctx ends or emit fails, it interrupts the code and
// returns when the code has ended. Its error says why the run was cut off, or that it did not begin; a failure of the
// code or of the kernel is a Failure event.
func (k *kernel) executeJob(ctx context.Context, j job, emit func(Event) error) error {
	k.lastJob++
	j.ID = k.lastJob
	data, err := k.language.encode(j)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e := &execution{kernel: k, job: j, emit: emit, marked: make(map[Stream]bool), stop: stop}
	r := k.beginRun()
	defer k.endRun(r)
	for stream, text := range k.takeBacklog() {
		e.emitEvent(newOutput(stream, text))
	}
	if err := k.writeRequest(data); err != nil {
		k.killGroup()
	}
	e.followMessages(ctx, r)
	if e.last {
		k.killGroup()
		<-k.ended
	}
	switch {
	case e.failed != nil:
		return e.failed
	case ctx.Err() != nil:
		return ctx.Err()
	case !e.begun && !e.done && !k.unwanted.Load():
		return errNotBegun
	}
	return nil
}

// followMessages handles the kernel's messages until the run or the kernel has ended.
func (e *execution) followMessages(ctx context.Context, r *reception) {
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	var again, late <-chan time.Time
	cut := ctx.Done()
	for !e.isOver() {
		select {
		case m := <-r.messages:
			e.handleMessage(m)
			if e.done && late == nil {
				late = time.After(markTime)
			}
		case <-alive.C:
			e.emitEvent(Alive{})
		case <-cut:
			e.kernel.interruptRun()
			cut, again, late = nil, time.After(Patience/4), time.After(Patience)
		case <-again:
			e.kernel.interruptRun() // a child that had just started may have missed the first one
		case <-late:
			if e.done {
				return
			}
			e.kernel.killGroup()
			late = nil
		case <-e.kernel.ended:
			if e.begun || e.kernel.unwanted.Load() {
				e.emitEvent(e.kernel.failureEvent())
			}
			return
		}
	}
}

func (e *execution) isOver() bool { return e.done && e.marked[Stdout] && e.marked[Stderr] }

// handleMessage handles one message.
func (e *execution) handleMessage(m message) {
	if m.stream != "" {
		if len(m.text) > 0 {
			e.emitEvent(newOutput(m.stream, m.text))
		}
		if m.marked {
			e.marked[m.stream] = true
		}
		return
	}
	switch m.line.Type {
	case "count":
		e.begun = true
		e.emitEvent(Count{Number: m.line.Count})
	case "result":
		e.emitEvent(newResult(m.line.Data, m.line.Main))
	case "error":
		e.emitEvent(Failure{Name: m.line.Name, Value: m.line.Value, Traceback: m.line.Traceback})
	case "done":
		e.done = e.done || m.line.ID == e.job.ID
		e.last = m.line.Last
	}
}

// emitEvent emits an event, unless emit has failed before.
func (e *execution) emitEvent(event Event) {
	if e.failed != nil {
		return
	}
	if e.failed = e.emit(event); e.failed != nil {
		e.stop()
	}
}

func newOutput(stream Stream, text []byte) Output {
	return Output{Stream: stream, Text: strings.ToValidUTF8(string(text), "\ufffd"), Time: time.Now().UTC()}
}

// checkEnv refuses variables that no program can have.
func checkEnv(env map[string]string) error {
	for name, value := range env {
		if !isEnvName(name) || hasNUL(value) {
			return sandpit.Errorf(sandpit.Invalid, "environment variable %.40q: not a name and value", name)
		}
	}
	return nil
}
