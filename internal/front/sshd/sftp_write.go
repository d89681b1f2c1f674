package sshd

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"path"
	"sync"

	"github.com/pkg/sftp"

	"github.com/sandpit-dev/sandpit"
)

// maxPending is how much may be kept that came before its turn, in bytes. A client has
// less than that under way.
const maxPending = 4 << 20

// Filewrite implements sftp.FileWriter.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	if flags.Read {
		return nil, refuseRequest(sandpit.Unsupported, "a file is read or written, not both at once")
	}
	old, err := f.statFile(r.Filepath, true)
	missing := sandpit.CodeOf(err) == sandpit.NotFound
	switch {
	case missing && flags.Creat:
		if dir, dirErr := f.statFile(path.Dir(r.Filepath), true); dirErr != nil {
			return nil, toClientError(dirErr) // Files would make it
		} else if !dir.Mode.IsDir() {
			return nil, refuseRequest(sandpit.NotFound, "%s is not a directory", path.Dir(r.Filepath))
		}
	case err != nil:
		return nil, toClientError(err)
	case flags.Excl && flags.Creat:
		return nil, refuseRequest(sandpit.AlreadyExists, "%s already exists", r.Filepath)
	case !old.Mode.IsRegular():
		return nil, refuseRequest(sandpit.Invalid, "%s is not a regular file", r.Filepath)
	}
	if err := f.reserveFile(); err != nil {
		return nil, err
	}
	u := &upload{files: f, path: r.Filepath, pending: make(map[int64][]byte), done: make(chan struct{})}
	if !missing && !flags.Trunc {
		u.oldSize = old.Size
	}
	if missing {
		u.options.Mode = openMode(r.Attrs)
	}
	f.mu.Lock()
	_, busy := f.uploads[r.Filepath]
	if !busy {
		f.uploads[r.Filepath] = u
	}
	f.mu.Unlock()
	if busy {
		f.releaseFile()
		return nil, refuseRequest(sandpit.Conflict, "%s is being written already", r.Filepath)
	}
	u.beginWriting()
	return u, nil
}

// openMode returns the requested permissions of a file to open, or zero. The library does not
// report which attributes there are, so their length decides: OpenSSH sends permissions, and
// with them possibly two times.
func openMode(raw []byte) fs.FileMode {
	if len(raw) != 4 && len(raw) != 12 {
		return 0
	}
	return fs.FileMode(binary.BigEndian.Uint32(raw)) & fs.ModePerm
}

// upload writes a file from its beginning to its end. It replaces the file as a whole when it
// is closed, and not at all if the client disconnects before. Skipped parts are taken from the
// existing file.
type upload struct {
	files   *files
	path    string
	oldSize int64 // of an existing file that is not to be truncated
	options sandpit.WriteOptions

	cancel context.CancelCauseFunc
	pipe   *io.PipeWriter
	done   chan struct{} // closed when err is set
	err    error

	mu      sync.Mutex
	next    int64 // how much was written so far
	pending map[int64][]byte
	held    int // bytes in pending
	failed  error
	later   attributes
	closed  bool
}

// beginWriting begins to write.
func (u *upload) beginWriting() {
	var ctx context.Context
	ctx, u.cancel = context.WithCancelCause(u.files.ctx)
	var content *io.PipeReader
	content, u.pipe = io.Pipe()
	go func() {
		defer close(u.done)
		u.err = u.files.guest.WriteFile(ctx, "", u.path, content, u.options)
		if ctx.Err() != nil {
			u.err = context.Cause(ctx)
		}
		_ = content.CloseWithError(orClosed(u.err))
	}()
}

func orClosed(err error) error {
	if err == nil {
		return io.ErrClosedPipe
	}
	return err
}

// setAttributes notes what the file is to be like, if it is still being written.
func (u *upload) setAttributes(a attributes) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return false
	}
	if a.mode != nil {
		u.later.mode = a.mode
	}
	if a.size != nil {
		u.later.size = a.size
	}
	if a.times != [2]uint32{} {
		u.later.times = a.times
	}
	return true
}

func (u *upload) writtenBytes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.next
}

// WriteAt implements io.WriterAt. Parts may come a little before their turn.
func (u *upload) WriteAt(b []byte, offset int64) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.failed != nil:
		return 0, u.failed
	case u.closed:
		return 0, u.failUpload(sandpit.Errorf(sandpit.Conflict, "%s is closed", u.path))
	case offset < u.next || u.pending[offset] != nil:
		return 0, u.failUpload(sandpit.Errorf(sandpit.Unsupported, "%s: files are written from the beginning to the end", u.path))
	case len(b) == 0:
		return 0, nil
	}
	u.pending[offset] = append([]byte(nil), b...)
	u.held += len(b)
	err := u.flushReady()
	for err == nil && u.held > maxPending {
		if err = u.skipExisting(); err == nil {
			err = u.flushReady()
		}
	}
	if err != nil {
		return 0, u.failUpload(err)
	}
	return len(b), nil
}

// failUpload ends the upload, of which nothing will be seen. The lock is held.
func (u *upload) failUpload(err error) error {
	u.failed = toClientError(err)
	u.cancel(err)
	return u.failed
}

// flushReady writes what has its turn. The lock is held.
func (u *upload) flushReady() error {
	for {
		b, ok := u.pending[u.next]
		if !ok {
			return nil
		}
		delete(u.pending, u.next)
		u.held -= len(b)
		if _, err := u.pipe.Write(b); err != nil {
			return err
		}
		u.next += int64(len(b))
	}
}

// skipExisting copies the part before the first waiting chunk from the existing file. The lock
// is held.
func (u *upload) skipExisting() error {
	first := int64(-1)
	for offset := range u.pending {
		if first < 0 || offset < first {
			first = offset
		}
	}
	if first < u.next {
		return sandpit.Errorf(sandpit.Unsupported, "%s: parts of a file may not overlap", u.path)
	}
	return u.keepExisting(first)
}

// keepExisting copies the part up to an offset from the existing file. The lock is held.
func (u *upload) keepExisting(end int64) error {
	if end > u.oldSize {
		return sandpit.Errorf(sandpit.Unsupported, "%s: files with holes are not supported", u.path)
	}
	old, err := u.files.guest.ReadRange(u.files.ctx, "", u.path, u.next, end-u.next)
	if err != nil {
		return err
	}
	defer old.Close()
	n, err := io.Copy(u.pipe, old)
	u.next += n
	if err == nil && u.next != end {
		err = sandpit.Errorf(sandpit.Conflict, "%s has changed meanwhile", u.path)
	}
	return err
}

// finishUpload writes what is left. The lock is held.
func (u *upload) finishUpload() error {
	for u.failed == nil && len(u.pending) > 0 {
		if err := u.skipExisting(); err != nil {
			return err
		}
		if err := u.flushReady(); err != nil {
			return err
		}
	}
	if u.failed != nil {
		return u.failed
	}
	end := max(u.oldSize, u.next)
	if size := u.later.size; size != nil {
		if *size < u.next {
			return sandpit.Errorf(sandpit.Unsupported, "%s: it has more than %d bytes already", u.path, *size)
		}
		end = *size
	}
	if end == u.next {
		return nil
	}
	return u.keepExisting(end)
}

// TransferError implements sftp.TransferError: the client has gone, and the file stays as
// it was.
func (u *upload) TransferError(err error) { u.cancel(err) }

// Close implements io.Closer. The file exists when it returns.
func (u *upload) Close() error {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return nil
	}
	err := u.finishUpload()
	u.closed = true
	if err != nil {
		_ = u.failUpload(err) // which is returned below
	}
	_ = u.pipe.Close() // never fails
	later := u.later
	u.mu.Unlock()
	<-u.done
	u.cancel(nil)
	u.files.mu.Lock()
	delete(u.files.uploads, u.path)
	u.files.mu.Unlock()
	u.files.releaseFile()
	if u.failed != nil {
		return u.failed
	}
	if u.err != nil {
		return toClientError(u.err)
	}
	return toClientError(u.files.applyAttributes(u.path, later))
}
