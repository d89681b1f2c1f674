package tree

import (
	"bufio"
	"errors"
	"io"
)

// input is the stream for the tar reader. It records why a read failed and whether the stream ended before the tar
// reader was done.
type input struct {
	r        io.Reader
	check    func() error // returns the context's error
	buffered *bufio.Reader
	err      error // error of r
	ended    bool  // the tar reader reached the end of the stream
}

// Read implements io.Reader for the tar reader.
func (in *input) Read(p []byte) (int, error) {
	n, err := in.buffered.Read(p)
	if errors.Is(err, io.EOF) {
		in.ended = true
	}
	return n, err
}

// newSource returns the stream below the buffer.
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

// readTail reads what follows the end mark, so that the writer of the stream can finish and can still report an
// error.
func (in *input) readTail() error {
	_, err := io.Copy(io.Discard, io.LimitReader(in.buffered, maxTail))
	if err != nil {
		return streamError(err, in)
	}
	return nil
}
