package guest

import (
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit/internal/gen/process"
)

// streams are the ends of a process's input and output: ours, and theirs until
// the process has them.
type streams struct {
	terminal *os.File // ours; nil without one
	input    *os.File // ours; nil without
	outputs  []output // ours

	theirs  []uintptr   // standard input, output and error
	toClose []io.Closer // theirs, once the process has them
}

// descriptor is a file that the Go runtime need not know of: that saves ten
// system calls for each.
type descriptor int

// Close implements io.Closer.
func (d descriptor) Close() error { return syscall.Close(int(d)) }

// output is one stream that comes out of a process.
type output struct {
	file  *os.File
	chunk int
	event func([]byte) *process.ProcessEvent_DataEvent
}

func stdoutEvent(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: b}}
}

func stderrEvent(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: b}}
}

func terminalEvent(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{Pty: b}}
}

// openStreams makes the streams that p asks for; null is an empty input.
func openStreams(p plan, null *os.File) (*streams, error) {
	s := &streams{}
	var err error
	if p.size != nil {
		err = s.openTerminal(p)
	} else {
		err = s.openPipes(p.stdin, null)
	}
	if err != nil {
		s.closeOurs()
		s.closeTheirs()
		return nil, err
	}
	return s, nil
}

func (s *streams) openTerminal(p plan) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return err
	}
	s.terminal = ours
	s.toClose = []io.Closer{theirs}
	s.theirs = []uintptr{theirs.Fd(), theirs.Fd(), theirs.Fd()}
	s.outputs = []output{{ours, terminalChunk, terminalEvent}}
	if err := pty.Setsize(ours, p.size); err != nil {
		return err
	}
	return theirs.Chown(p.user.uid, -1) // programs open /dev/tty by name
}

func (s *streams) openPipes(withInput bool, null *os.File) error {
	s.theirs = []uintptr{null.Fd()}
	if withInput {
		r, w, err := pipe()
		if err != nil {
			return err
		}
		s.theirs[0], s.toClose = uintptr(r), append(s.toClose, r)
		s.input, err = ourEnd(w)
		if err != nil {
			return err
		}
	}
	for _, event := range []func([]byte) *process.ProcessEvent_DataEvent{stdoutEvent, stderrEvent} {
		r, w, err := pipe()
		if err != nil {
			return err
		}
		s.theirs, s.toClose = append(s.theirs, uintptr(w)), append(s.toClose, w)
		ours, err := ourEnd(r)
		if err != nil {
			return err
		}
		s.outputs = append(s.outputs, output{ours, chunk, event})
	}
	return nil
}

func pipe() (r, w descriptor, err error) {
	fds := make([]int, 2)
	err = syscall.Pipe2(fds, syscall.O_CLOEXEC)
	return descriptor(fds[0]), descriptor(fds[1]), err
}

// ourEnd makes an end of a pipe a file that can be waited for without a thread.
func ourEnd(d descriptor) (*os.File, error) {
	if err := syscall.SetNonblock(int(d), true); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return os.NewFile(uintptr(d), "pipe"), nil
}

func (s *streams) closeTheirs() {
	for _, f := range s.toClose {
		_ = f.Close() // nothing was written by us
	}
}

func (s *streams) closeOurs() {
	if s.input != nil {
		_ = s.input.Close()
	}
	for _, o := range s.outputs {
		_ = o.file.Close()
	}
}
