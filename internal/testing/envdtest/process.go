package envdtest

import (
	"bytes"
	"compress/gzip"
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

const honestPID = 42

// pause is the delay between slow events.
const pause = 20 * time.Millisecond

// sleep pauses, and reports whether to continue.
func sleep(ctx context.Context) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// bomb is a compressed gigabyte of zeros: a megabyte, repeated.
func bomb() []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(make([]byte, mib)) // a buffer takes everything
	_ = w.Close()                     // the same
	return repeatedly(b.Bytes(), 1024)
}

func started(pid uint32) *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: pid}}})
}

func stdout(b []byte) *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
		Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: b},
	}}})
}

func stderr(b []byte) *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
		Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: b},
	}}})
}

func pty(b []byte) *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
		Output: &process.ProcessEvent_DataEvent_Pty{Pty: b},
	}}})
}

func keepAlive() *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{}})
}

func exited(code int32, status string) *process.StartResponse {
	return end(&process.ProcessEvent_EndEvent{ExitCode: code, Exited: true, Status: status})
}

func end(e *process.ProcessEvent_EndEvent) *process.StartResponse {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: e}})
}

// event is also the response of Connect: both have the same encoding.
func event(e *process.ProcessEvent) *process.StartResponse { return &process.StartResponse{Event: e} }

func longText() string { return strings.Repeat("long ", 8*mib/5) }

// processLies are about the life of a process, in the responses to Start and Connect.
func processLies() map[string]answers {
	start, fine := started(honestPID), exited(0, "exit status 0")
	follow := func(then func(*call), messages ...proto.Message) answers {
		answer := streamed(then, messages...)
		return answers{"Start": answer, "Connect": answer}
	}
	fake := func(e *process.ProcessEvent_EndEvent) answers { return follow(ended, start, end(e)) }
	failure := longText()
	lies := map[string]answers{
		"pid-0":               follow(ended, started(0), fine),
		"pid-max":             follow(ended, started(math.MaxUint32), fine),
		"pid-1":               follow(ended, started(1), fine),
		"no-start":            follow(ended, fine),
		"no-start-silent":     follow(silent),
		"no-start-keepalive":  follow(forever(keepAlive())),
		"data-first":          follow(silent, stdout([]byte("x")), start, fine),
		"start-twice":         follow(ended, start, started(7), fine),
		"start-endless":       follow(forever(start), start),
		"empty-event":         follow(ended, event(nil), start, fine),
		"empty-events":        follow(forever(event(nil)), start),
		"nil-start":           follow(ended, event(&process.ProcessEvent{Event: &process.ProcessEvent_Start{}}), fine),
		"exit-min":            fake(&process.ProcessEvent_EndEvent{ExitCode: math.MinInt32, Exited: true, Status: "exited"}),
		"exit-min-signal":     fake(&process.ProcessEvent_EndEvent{ExitCode: math.MinInt32, Status: "signal: 4294967295"}),
		"exit-max":            fake(&process.ProcessEvent_EndEvent{ExitCode: math.MaxInt32, Exited: true, Status: "\x00"}),
		"exit-256":            fake(&process.ProcessEvent_EndEvent{ExitCode: 256, Status: "signal: killed"}),
		"exit-minus-1":        fake(&process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: -1 (core dumped)"}),
		"exit-minus-1-exited": fake(&process.ProcessEvent_EndEvent{ExitCode: -1, Exited: true}),
		"exit-long":           fake(&process.ProcessEvent_EndEvent{ExitCode: -1, Status: failure, Error: &failure}),
		"nil-end":             follow(ended, start, event(&process.ProcessEvent{Event: &process.ProcessEvent_End{}})),
		"nil-data":            follow(ended, start, event(&process.ProcessEvent{Event: &process.ProcessEvent_Data{}}), fine),
		"end-twice":           follow(ended, start, fine, exited(7, "")),
		"data-after-end":      follow(forever(stdout(make([]byte, 32*kib))), start, fine),
		"silence-after-end":   follow(silent, start, fine),
		"silence-after-start": follow(silent, start),
		"keepalives":          follow(forever(keepAlive()), start),
		"cut-after-start":     follow(cutOff, start, stdout([]byte("x"))),
		"cut-in-frame":        follow(func(c *call) { c.send(0, 0, 0, 1, 0, 10) }, start),
		"hang-up-in-frame":    follow(func(c *call) { c.send(0, 0, 0, 1, 0, 10); panicAbort() }, start),
		"end-of-nothing":      follow(ended, start),
		"stdout-16mib":        follow(ended, start, stdout(make([]byte, 17*mib)), fine),
		"stdout-empty":        follow(forever(stdout(nil)), start),
		"frame-hollow":        follow(func(c *call) { c.repeat(frame(0, in(1, hollow(2, 15*mib))), 1); ended(c) }, start),
		"signal-silent":       {"SendSignal": silent, "Update": silent, "StreamInput": silent, "SendInput": silent, "CloseStdin": silent, "Start": streamed(silent, start), "Connect": streamed(silent, start)},
		"input-early":         {"StreamInput": func(c *call) { c.unary(nil) }},
		"signal-stream":       {"SendSignal": streamed(ended, start, fine), "Update": streamed(silent)},
	}
	for _, size := range []int{1, 32 * kib, 200 * kib, mib} {
		b := make([]byte, size)
		name := strconv.Itoa(size)
		lies["stdout-endless-"+name] = follow(forever(stdout(b)), start)
		lies["mixed-endless-"+name] = follow(func(c *call) {
			for c.message(stdout(b)) && c.message(stderr(b)) && c.message(pty(b)) && c.ctx.Err() == nil {
				time.Sleep(3 * time.Duration(size) * time.Second / pace)
			}
		}, start)
	}
	return lies
}

// listLies are about lists of processes.
func listLies() map[string]answers {
	list := func(make func() []byte) answers { return answers{"List": unaryBytes(make)} }
	info := func(p *process.ProcessInfo) []byte {
		return encode(&process.ListResponse{Processes: []*process.ProcessInfo{p}})
	}
	return map[string]answers{
		"list-pid-0":   list(func() []byte { return info(&process.ProcessInfo{}) }),
		"list-pid-max": list(func() []byte { return info(&process.ProcessInfo{Pid: math.MaxUint32}) }),
		"list-nil":     list(func() []byte { return hollow(1, 2) }),
		"list-many": list(func() []byte {
			return repeatedly(info(&process.ProcessInfo{Pid: 7, Config: &process.ProcessConfig{Cmd: "x"}}), 100_000)
		}),
		"list-hollow":      list(func() []byte { return hollow(1, 15*mib) }),
		"list-hollow-args": list(func() []byte { return in(1, in(1, hollow(2, 15*mib))) }),
		"list-hollow-env":  list(func() []byte { return in(1, in(1, hollow(3, 15*mib))) }),
		"list-17mib": list(func() []byte {
			return info(&process.ProcessInfo{Pid: 7, Config: &process.ProcessConfig{Cmd: strings.Repeat("x", 17*mib)}})
		}),
		"list-15mib": list(func() []byte {
			return info(&process.ProcessInfo{Pid: 7, Config: &process.ProcessConfig{Cmd: strings.Repeat("x", 15*mib)}})
		}),
		"list-env":      list(func() []byte { return in(1, append(in(1, marks(3, 500_000)), 2<<3, 7)) }),
		"list-not-text": list(func() []byte { return in(1, in(1, in(1, []byte("\xff\xfe")))) }),
		"list-unknown":  list(func() []byte { return in(99, make([]byte, 15*mib)) }),
		"list-groups":   list(func() []byte { return repeatedly([]byte{11<<3&0x7f | 3}, 10_000) }),
		"list-endless":  {"List": func(c *call) { c.drain(); c.status(200, "Content-Type", unaryType); c.repeat(hollow(1, 64*kib), -1) }},
		"list-truncated": list(func() []byte {
			return []byte{tag(1), 0xff, 0xff, 0xff, 0x7f}
		}),
	}
}
