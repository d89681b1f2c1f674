package interpreter

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

const (
	maxLine        = 32 << 20 // bytes of one line of a kernel: a result with all of its representations
	maxBacklog     = 64 << 10 // bytes of a stream that are kept between two runs
	startTime      = 2 * time.Minute
	lastOutputTime = 200 * time.Millisecond // how long the last output of an ended kernel is read
)

// kernel is a program that runs code. The goroutines that read from it end before ended is closed.
type kernel struct {
	language language
	cmd      *exec.Cmd
	requests *os.File
	readers  sync.WaitGroup
	attached chan struct{} // closed when all readers are started
	ended    chan struct{} // closed when the program and its readers have ended
	ending   error         // its exit status, once ended is closed
	lastJob  uint64
	unwanted atomic.Bool // ended on request

	mu      sync.Mutex
	run     *reception        // of the current run, or nil
	backlog map[Stream][]byte // the newest output of background threads between runs
}

// reception receives what a kernel sends during a run.
type reception struct {
	messages chan message
	over     chan struct{}
}

// message is one thing that a kernel sends: a part of a stream, a mark in a stream, or a line.
type message struct {
	stream Stream // "" for lines
	text   []byte
	marked bool // the stream's part of this run has ended
	line   line
}

// line is a line of descriptor 4.
type line struct {
	Type      string                     `json:"type"`
	ID        uint64                     `json:"id"`
	Count     int                        `json:"count"`
	Main      bool                       `json:"main"`
	Last      bool                       `json:"last"`
	Data      map[string]json.RawMessage `json:"data"`
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback string                     `json:"traceback"`
}

// pipes are the ends of pipes that a kernel inherits, and the service's ends.
type pipes struct {
	theirs []*os.File // by descriptor, from 1
	ours   []*os.File
}

func (p *pipes) addPipe(intoKernel bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if !intoKernel {
		r, w = w, r
	}
	p.theirs, p.ours = append(p.theirs, r), append(p.ours, w)
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing is lost: written data is in the pipe
	}
}

// startKernel starts a kernel in a directory, with an environment in addition to the service's, and waits until it
// can run code.
func startKernel(ctx context.Context, l language, dir string, env map[string]string) (*kernel, error) {
	program, err := l.findProgram(env)
	if err != nil {
		return nil, err
	}
	var p pipes
	defer func() { closeAll(p.theirs) }()
	for _, into := range []bool{false, false, true, false, true} {
		if err := p.addPipe(into); err != nil {
			closeAll(p.ours)
			return nil, sandpit.Errorf(sandpit.Exhausted, "open pipes for a kernel: %w", err)
		}
	}
	k := &kernel{language: l, requests: p.ours[2], attached: make(chan struct{}), ended: make(chan struct{}), backlog: make(map[Stream][]byte)}
	k.cmd = exec.Command(program, l.command[1:]...) //nolint:noctx,gosec // it outlives the request; it may be any program
	k.cmd.Dir = dir
	k.cmd.Env = k.cmd.Environ()
	for name, value := range env {
		k.cmd.Env = append(k.cmd.Env, name+"="+value)
	}
	k.cmd.Stdout, k.cmd.Stderr, k.cmd.ExtraFiles = p.theirs[0], p.theirs[1], p.theirs[2:]
	// A process group of its own, so that its children are interrupted and killed with it.
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	first := k.beginRun()
	source, mark := l.withMark()
	if err := k.startProgram(p.ours, mark); err != nil {
		closeAll(p.ours)
		return nil, sandpit.Errorf(sandpit.Unavailable, "start a kernel: %w", err)
	}
	_, err = io.WriteString(p.ours[4], source)
	_ = p.ours[4].Close() // the kernel reads to the end of the pipe
	if err == nil {
		err = k.awaitReady(ctx, first)
	}
	k.endRun(first)
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// startProgram starts the program, its readers, and a goroutine that waits for its end.
func (k *kernel) startProgram(ours []*os.File, mark string) error {
	started := make(chan error)
	go func() {
		// Pdeathsig kills the program when the thread that started it ends. This thread stays until the program has
		// ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := k.cmd.Start()
		started <- err
		if err == nil {
			k.waitForEnd(ours)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	k.readers.Go(func() { k.readStream(newLastReader(ours[0]), Stdout, mark) })
	k.readers.Go(func() { k.readStream(newLastReader(ours[1]), Stderr, mark) })
	k.readers.Go(func() { k.readLines(newLastReader(ours[3])) })
	close(k.attached)
	return nil
}

// waitForEnd waits for the kernel and its readers to end.
func (k *kernel) waitForEnd(ours []*os.File) {
	defer close(k.ended)
	k.ending = k.cmd.Wait()
	if k.ending == nil {
		k.ending = errors.New("exit status 0")
	}
	k.killGroup()
	<-k.attached
	// Its last output is in the pipes; other processes that have them open must not delay the end.
	for _, f := range []*os.File{ours[0], ours[1], ours[3]} {
		_ = f.SetReadDeadline(time.Now().Add(lastOutputTime)) // pipes have deadlines
	}
	k.readers.Wait()
	closeAll([]*os.File{ours[0], ours[1], ours[2], ours[3]})
}

// awaitReady waits for the kernel's first line. Its error contains what the kernel printed instead.
func (k *kernel) awaitReady(ctx context.Context, r *reception) error {
	late := time.NewTimer(startTime)
	defer late.Stop()
	var said strings.Builder
	for {
		select {
		case m := <-r.messages:
			if m.line.Type == "ready" {
				return nil
			}
			if said.Len() < 4096 {
				said.Write(m.text)
			}
		case <-k.ended:
			return sandpit.Errorf(sandpit.Unavailable, "start the kernel: %v: %s", k.ending, lastLine(said.String()))
		case <-late.C:
			return sandpit.Errorf(sandpit.Timeout, "the kernel is not ready after %v", startTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// beginRun directs everything that the kernel sends to a new run.
func (k *kernel) beginRun() *reception {
	r := &reception{messages: make(chan message), over: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run = r
	return r
}

// takeBacklog returns the output since the last run.
func (k *kernel) takeBacklog() map[Stream][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.backlog
	k.backlog = make(map[Stream][]byte)
	return old
}

func (k *kernel) endRun(r *reception) {
	k.mu.Lock()
	k.run = nil
	k.mu.Unlock()
	close(r.over)
}

// deliverMessage gives a message to the current run. Between runs it keeps output for the next run, within a bound,
// and ignores lines.
func (k *kernel) deliverMessage(m message) {
	k.mu.Lock()
	r := k.run
	if r == nil {
		if m.stream != "" && len(m.text) > 0 {
			all := slices.Concat(k.backlog[m.stream], m.text)
			k.backlog[m.stream] = bytes.Clone(all[max(0, len(all)-maxBacklog):])
		}
		k.mu.Unlock()
		return
	}
	k.mu.Unlock()
	select {
	case r.messages <- m:
	case <-r.over:
		m.marked = false // the mark belonged to that run
		k.deliverMessage(m)
	}
}

// readStream delivers the output of programs, cut at marks and not within characters.
func (k *kernel) readStream(f io.Reader, stream Stream, mark string) {
	var held []byte // the beginning of a mark or of a character
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		data := slices.Concat(held, buf[:n])
		for {
			before, after, found := bytes.Cut(data, []byte(mark))
			if !found {
				break
			}
			k.deliverMessage(message{stream: stream, text: bytes.Clone(before), marked: true})
			data = after
		}
		keep := 0
		if err == nil {
			keep = unfinishedBytes(data, mark)
		}
		if whole := data[:len(data)-keep]; len(whole) > 0 {
			k.deliverMessage(message{stream: stream, text: bytes.Clone(whole)})
		}
		held = bytes.Clone(data[len(data)-keep:])
		if err != nil {
			return // the end of the stream or of the kernel
		}
	}
}

// unfinishedBytes returns how many of the last bytes begin a mark or a character that is incomplete.
func unfinishedBytes(data []byte, mark string) int {
	for n := min(len(mark)-1, len(data)); n > 0; n-- {
		if strings.HasPrefix(mark, string(data[len(data)-n:])) {
			return n
		}
	}
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if b := data[len(data)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// readLines delivers the lines of descriptor 4. It kills a kernel that writes anything else.
func (k *kernel) readLines(f io.Reader) {
	scanner := bufio.NewScanner(f)
	scanner.Buffer(make([]byte, 0, 4096), maxLine)
	for scanner.Scan() {
		m, err := parseLine(scanner.Bytes())
		if err != nil {
			k.killGroup()
			return
		}
		k.deliverMessage(m)
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		k.killGroup()
	}
}

func parseLine(text []byte) (m message, err error) {
	err = json.Unmarshal(text, &m.line)
	return m, err
}

// interruptRun interrupts the running program and its children.
func (k *kernel) interruptRun() {
	if k.language.byLine {
		_ = k.writeRequest([]byte("\n")) // a kernel that does not read is killed soon
	}
	_ = syscall.Kill(-k.cmd.Process.Pid, syscall.SIGINT) // it may have ended
}

// writeRequest writes to the kernel. It fails if the kernel does not read for Patience.
func (k *kernel) writeRequest(data []byte) error {
	if err := k.requests.SetWriteDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	_, err := k.requests.Write(data)
	return err
}

func (k *kernel) killGroup() {
	_ = syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
}

// isAlive reports whether the kernel can run code.
func (k *kernel) isAlive() bool {
	select {
	case <-k.ended:
		return false
	default:
		return true
	}
}

// close kills the kernel and everything in its process group.
func (k *kernel) close() {
	k.killGroup()
	<-k.ended
}

// failureEvent returns the event of a run whose kernel has ended.
func (k *kernel) failureEvent() Failure {
	return Failure{
		Name:  FailKernel,
		Value: fmt.Sprintf("the kernel has ended (%v): its variables are lost, and the next run has a new one", k.ending),
	}
}
