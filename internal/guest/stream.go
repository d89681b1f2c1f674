package guest

import (
	"os"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit/internal/gen/process"
)

// streams are the ends of a process's input and output: ours, and theirs until
// the process has them.
type streams struct {
	terminal *os.File // ours; nil without one
	input    *os.File // ours; nil without
	outputs  []output // ours
	theirs   []*os.File
}

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

func openStreams(p plan) (*streams, error) {
	s := &streams{}
	var err error
	if p.size != nil {
		err = s.openTerminal(p)
	} else {
		err = s.openPipes(p.stdin)
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
	s.theirs = []*os.File{theirs, theirs, theirs}
	s.outputs = []output{{ours, terminalChunk, terminalEvent}}
	if err := pty.Setsize(ours, p.size); err != nil {
		return err
	}
	return theirs.Chown(p.user.uid, -1) // programs open /dev/tty by name
}

func (s *streams) openPipes(withInput bool) error {
	in, err := s.openInput(withInput)
	if err != nil {
		return err
	}
	s.theirs = append(s.theirs, in)
	for _, event := range []func([]byte) *process.ProcessEvent_DataEvent{stdoutEvent, stderrEvent} {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.theirs = append(s.theirs, w)
		s.outputs = append(s.outputs, output{r, chunk, event})
	}
	return nil
}

func (s *streams) openInput(wanted bool) (theirs *os.File, err error) {
	if !wanted {
		return os.Open(os.DevNull)
	}
	theirs, s.input, err = os.Pipe()
	return theirs, err
}

func (s *streams) descriptors() []uintptr {
	fds := make([]uintptr, len(s.theirs))
	for i, f := range s.theirs {
		fds[i] = f.Fd()
	}
	return fds
}

func (s *streams) closeTheirs() {
	for _, f := range s.theirs {
		_ = f.Close() // a terminal's stands here three times
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
