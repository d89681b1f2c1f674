package data

import (
	"context"
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
)

var errSeek = errors.New("seek to a negative offset")

// content is an io.ReadSeeker of a file of a sandbox, as http.ServeContent needs it. It opens
// the file again after a seek, and reads only what is needed.
type content struct {
	ctx    context.Context //nolint:containedctx // of the call that reads it
	guest  sandpit.Files
	user   string
	path   string
	size   int64
	offset int64
	open   io.ReadCloser // at offset, or nil
	err    error         // the first error of reading
}

// Seek implements io.Seeker.
func (f *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errSeek
	}
	if offset != f.offset {
		f.closeFile()
	}
	f.offset = offset
	return offset, nil
}

// Read implements io.Reader. A file that has become shorter is an error, because its length
// was sent.
func (f *content) Read(b []byte) (int, error) {
	if f.offset >= f.size {
		return 0, io.EOF
	}
	if f.open == nil {
		if f.open, f.err = f.guest.ReadRange(f.ctx, f.user, f.path, f.offset, f.size-f.offset); f.err != nil {
			return 0, f.err
		}
	}
	n, err := f.open.Read(b)
	f.offset += int64(n)
	if errors.Is(err, io.EOF) && f.offset < f.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

func (f *content) closeFile() {
	if f.open != nil {
		_ = f.open.Close() // it was only read
		f.open = nil
	}
}
