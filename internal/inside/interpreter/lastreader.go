package interpreter

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// maxLastOutput is how much a pipe may hold, in bytes.
const maxLastOutput = 1 << 20

// lastReader reads from a pipe also what is in it when its read deadline has expired: on a busy machine
// the reader may get no processor time before. Then the stream ends, although other processes may have the
// pipe open.
type lastReader struct {
	pipe *os.File
	left int // bytes that may be read after the deadline
}

func newLastReader(pipe *os.File) *lastReader { return &lastReader{pipe, maxLastOutput} }

// Read implements io.Reader.
func (r *lastReader) Read(p []byte) (int, error) {
	n, err := r.pipe.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	n = readNow(r.pipe, p[:min(len(p), r.left)])
	if r.left -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// readNow reads what a pipe holds, regardless of its deadline.
func readNow(pipe *os.File, p []byte) (n int) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	if err := raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), p) }); err != nil { // EAGAIN: it is empty
		return 0
	}
	return max(0, n)
}
