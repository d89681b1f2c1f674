package tree

import (
	"bufio"
	"errors"
	"io"
)

// input is the stream as the tar reader sees it. It knows why a read failed and
// whether the stream had an end before the reader was done with it.
type input struct {
	r        io.Reader
	check    func() error // the context's error
	buffered *bufio.Reader
	err      error // what r failed with
	ended    bool  // somebody wanted more than there is
}

// Read implements io.Reader for the tar reader.
func (in *input) Read(p []byte) (int, error) {
	n, err := in.buffered.Read(p)
	if errors.Is(err, io.EOF) {
		in.ended = true
	}
	return n, err
}

// newSource is the stream below the buffer.
func (in *input) newSource() io.Reader { return source{in} }

type source struct{ in *input }

func (s source) Read(p []byte) (int, error) {
	if err := s.in.check(); err != nil {
		s.in.err = err
		return 0, err
	}
	n, err := s.in.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.in.err = err
	}
	return n, err
}

// readTail reads what follows the mark of the end, so that whoever writes the
// stream can finish, and can still say that something went wrong.
func (in *input) readTail() error {
	_, err := io.Copy(io.Discard, io.LimitReader(in.buffered, maxTail))
	if err != nil {
		return streamError(err, in)
	}
	return nil
}
