package sshd

import (
	"io"
	"sync"

	"github.com/pkg/sftp"

	"github.com/sandpit-dev/sandpit"
)

const (
	// chunkSize is how much of a file is asked for at once: clients ask for far less, and
	// each question costs about a millisecond.
	chunkSize = 256 << 10
	// maxChunks is how much of a file is kept: clients ask for many parts at once.
	maxChunks = 4
)

// Fileread implements sftp.FileReader.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	file, err := f.statFile(r.Filepath, true)
	if err == nil && file.Mode.IsDir() {
		err = sandpit.Errorf(sandpit.Invalid, "%s is a directory", r.Filepath)
	}
	if err != nil {
		return nil, toClientError(err)
	}
	if err := f.reserveFile(); err != nil {
		return nil, err
	}
	return &download{files: f, path: r.Filepath, chunks: make(map[int64]*chunk)}, nil
}

// download reads a file in parts.
type download struct {
	files *files
	path  string

	mu     sync.Mutex
	chunks map[int64]*chunk // by where they begin
	order  []int64          // of chunks, the oldest first
	closed bool
}

// chunk is a part of a file, once it was read.
type chunk struct {
	once sync.Once
	data []byte // fewer than chunkSize at the end of the file
	err  error
}

// ReadAt implements io.ReaderAt.
func (d *download) ReadAt(b []byte, offset int64) (n int, err error) {
	if offset < 0 {
		return 0, sftp.ErrSSHFxBadMessage
	}
	for n < len(b) {
		begin := (offset + int64(n)) / chunkSize * chunkSize
		c := d.chunkAt(begin)
		if c.err != nil {
			return n, toClientError(c.err)
		}
		at := offset + int64(n) - begin
		if at >= int64(len(c.data)) {
			return n, io.EOF
		}
		n += copy(b[n:], c.data[at:])
	}
	return n, nil
}

// chunkAt returns the part that begins at a place.
func (d *download) chunkAt(begin int64) *chunk {
	d.mu.Lock()
	c := d.chunks[begin]
	if c == nil {
		c = &chunk{}
		d.chunks[begin] = c
		d.order = append(d.order, begin)
		if len(d.order) > maxChunks {
			delete(d.chunks, d.order[0])
			d.order = d.order[1:]
		}
	}
	d.mu.Unlock()
	c.once.Do(func() { c.data, c.err = d.fetchChunk(begin) })
	return c
}

func (d *download) fetchChunk(begin int64) ([]byte, error) {
	ctx, cancel := d.files.shortContext()
	defer cancel()
	part, err := d.files.guest.ReadRange(ctx, "", d.path, begin, chunkSize)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	return io.ReadAll(io.LimitReader(part, chunkSize))
}

// Close implements io.Closer.
func (d *download) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.files.releaseFile()
	}
	return nil
}
