package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/inside/commandlog"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// streams are the ends of a process's input and output: the guest's, and the process's until it has inherited them.
type streams struct {
	terminal *os.File // ours; nil without a terminal
	input    *os.File // ours; nil without
	outputs  []output // ours

	theirs  []uintptr   // standard input, output and error
	toClose []io.Closer // theirs, closed once the process has them
}

// descriptor is a file that the Go runtime does not manage, which saves ten system calls for each.
type descriptor int

// Close implements io.Closer.
func (d descriptor) Close() error { return syscall.Close(int(d)) }

// output is one output stream of a process.
type output struct {
	file   *os.File
	chunk  int
	stream commandlog.Stream
	event  func([]byte) *process.ProcessEvent_DataEvent
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

// openStreams opens the streams that p needs; null is an empty input.
func openStreams(p startPlan, null *os.File) (*streams, error) {
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

func (s *streams) openTerminal(p startPlan) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return err
	}
	s.toClose = []io.Closer{theirs}
	if s.terminal, err = reopenNonblocking(ours); err != nil {
		return err
	}
	s.theirs = []uintptr{theirs.Fd(), theirs.Fd(), theirs.Fd()}
	s.outputs = []output{{s.terminal, terminalChunk, commandlog.Stdout, terminalEvent}}
	if err := pty.Setsize(theirs, p.size); err != nil {
		return err
	}
	return theirs.Chown(p.user.uid, -1) // programs open /dev/tty by name
}

// reopenNonblocking returns a file for f whose reads and writes can be interrupted: otherwise a write to a terminal
// whose program reads nothing would block forever. The pty package's use of Fd makes f blocking.
func reopenNonblocking(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	return ourEnd(descriptor(fd))
}

// resizeTerminal sets the size of a terminal. The file stays nonblocking.
func resizeTerminal(terminal *os.File, rows, cols uint16) error {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var sizeErr error
	err = conn.Control(func(fd uintptr) {
		sizeErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return errors.Join(err, sizeErr)
}

func (s *streams) openPipes(withInput bool, null *os.File) error {
	s.theirs = []uintptr{null.Fd()}
	if withInput {
		r, w, err := newPipe()
		if err != nil {
			return err
		}
		s.theirs[0], s.toClose = uintptr(r), append(s.toClose, r)
		s.input, err = ourEnd(w)
		if err != nil {
			return err
		}
	}
	for _, o := range []output{
		{nil, chunk, commandlog.Stdout, stdoutEvent},
		{nil, chunk, commandlog.Stderr, stderrEvent},
	} {
		ours, w, err := newOutputPipe()
		if err != nil {
			return err
		}
		s.theirs, s.toClose = append(s.theirs, uintptr(w)), append(s.toClose, w)
		o.file = ours
		s.outputs = append(s.outputs, o)
	}
	return nil
}

func newPipe() (r, w descriptor, err error) {
	fds := make([]int, 2)
	err = syscall.Pipe2(fds, syscall.O_CLOEXEC)
	return descriptor(fds[0]), descriptor(fds[1]), err
}

// newOutputPipe opens a pipe for output: the reading end is nonblocking, the writing end blocks.
func newOutputPipe() (ours *os.File, theirs descriptor, err error) {
	fds := make([]int, 2)
	if err := syscall.Pipe2(fds, syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil, 0, err
	}
	theirs = descriptor(fds[1])
	// Not SetNonblock on ours, which needs one more system call.
	if _, err := unix.FcntlInt(uintptr(theirs), unix.F_SETFL, 0); err != nil {
		return nil, 0, errors.Join(err, theirs.Close(), descriptor(fds[0]).Close())
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), theirs, nil
}

// ourEnd turns an end of a pipe into a file that the runtime can wait for without a thread.
func ourEnd(d descriptor) (*os.File, error) {
	if err := syscall.SetNonblock(int(d), true); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return os.NewFile(uintptr(d), "pipe"), nil
}

func (s *streams) closeTheirs() {
	for _, f := range s.toClose {
		_ = f.Close() // the guest wrote nothing to it
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
