package interpreter

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Patience is how long code may go on after it was interrupted, before its kernel is killed.
const Patience = 5 * time.Second

// aliveInterval is how often a run that says nothing shows that it goes on.
const aliveInterval = 5 * time.Second

// markTime is how long the marks may come after a kernel's last line; a program can have
// closed what they come through.
const markTime = 2 * time.Second

// errNotBegun says that a kernel had ended before it came to the code, without our doing.
var errNotBegun = errors.New("the kernel had ended before the run began")

// execution is one run in a kernel.
type execution struct {
	kernel *kernel
	job    job
	emit   func(Event) error
	failed error // of emit: nobody is told any more
	begun  bool  // the kernel says so
	done   bool  // the kernel says so
	last   bool  // the kernel ends after this run
	marked map[Stream]bool
	stop   func() // cuts the run off
}

// executeJob runs code in the kernel and tells what happens. When ctx ends, or emit fails, the code is interrupted; execute
// returns when that is done. Its error says why the run was cut off, or that it has not begun; what is wrong with the
// code or the kernel is a Failure.
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

// followMessages passes on what the kernel tells until the run has ended, or the kernel has.
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
			e.kernel.interruptRun() // a child that had just begun misses the first one
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

// handleMessage passes on one message.
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

// emitEvent emits an event, unless nobody listens any more.
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

// checkEnv refuses what no program could be given.
func checkEnv(env map[string]string) error {
	for name, value := range env {
		if !isEnvName(name) || hasNUL(value) {
			return sandpit.Errorf(sandpit.Invalid, "environment variable %.40q: not a name and value", name)
		}
	}
	return nil
}
