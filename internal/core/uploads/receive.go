package uploads

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Deadliner sets the deadline of reading from a connection, as an http.ResponseController does.
type Deadliner interface {
	SetReadDeadline(deadline time.Time) error
}

// Upload is what a client sends.
type Upload struct {
	// Body must have Size bytes.
	Body io.Reader
	Size int64
	// ETag returns a name of the content after Body was read. Parts need it.
	ETag func() string
	// Connection is that of the client.
	Connection Deadliner
}

// Receive stores an archive, which must be complete and as long as announced. Of uploads of the
// same archive, one at a time is received.
//
// Invalid: the size. Exhausted: there is not enough room. Timeout: the client is too slow.
func (u *Store) Receive(ctx context.Context, n Name, up Upload) error {
	if err := checkSize(up.Size); err != nil {
		return err
	}
	waiting, cancel := withUploadWait(ctx)
	defer cancel()
	// In this order, so that an upload does not hold a slot while it waits for its turn.
	done, err := u.waitForTurn(waiting, n)
	if err != nil {
		return err
	}
	defer done()
	slot, err := u.slots.Acquire(waiting, n.Owner, 1)
	if err != nil {
		return err
	}
	defer slot.Release()
	return up.read(ctx, func(body io.Reader) error { return u.storeArchive(n, body, up.Size) })
}

func checkSize(size int64) error {
	switch {
	case size < 0:
		return sandpit.Errorf(sandpit.Invalid, "Content-Length is missing")
	case size > MaxBytes:
		return sandpit.Errorf(sandpit.Invalid, "%d bytes, want at most %d", size, int64(MaxBytes))
	}
	return nil
}

// withUploadWait returns a context that ends when an upload has waited for too long.
func withUploadWait(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, uploadWait,
		sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "too many uploads"), "try again later"))
}

// read calls store with the body, which must keep arriving until ctx ends.
func (up Upload) read(ctx context.Context, store func(io.Reader) error) error {
	body := &pacedReader{ctx: ctx, r: up.Body, control: up.Connection, end: time.Now().Add(UploadTime)}
	defer body.clearDeadline()
	interrupt := context.AfterFunc(ctx, body.interruptRead)
	defer interrupt()
	return store(body)
}

// waitForTurn waits until no other upload of the archive is being received. Others then wait
// until done is called.
func (u *Store) waitForTurn(ctx context.Context, n Name) (done func(), err error) {
	u.mu.Lock()
	one := u.coming[n]
	if one == nil {
		one = &pendingUpload{turn: make(chan struct{}, 1)}
		u.coming[n] = one
	}
	one.users++
	u.mu.Unlock()
	leave := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(u.coming, n)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() {
			<-one.turn
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// pacedReader is a body that must keep arriving, until its context ends.
type pacedReader struct {
	ctx     context.Context //nolint:containedctx // of the upload
	r       io.Reader
	control Deadliner
	end     time.Time // when all of it must have come
	left    int       // of the current piece
}

// Read implements io.Reader.
func (p *pacedReader) Read(b []byte) (int, error) {
	if p.left <= 0 {
		until := time.Now().Add(uploadPause)
		if until.After(p.end) {
			until = p.end
		}
		_ = p.control.SetReadDeadline(until) // connections without deadlines need none
		p.left = uploadPiece
	}
	if p.ctx.Err() != nil { // after the deadline was set, which may have replaced that of interrupt
		return 0, context.Cause(p.ctx)
	}
	n, err := p.r.Read(b)
	p.left -= n
	if p.ctx.Err() != nil {
		return n, context.Cause(p.ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = sandpit.Errorf(sandpit.Timeout, "the upload is too slow")
	}
	return n, err
}

// interruptRead ends a pending read.
func (p *pacedReader) interruptRead() { _ = p.control.SetReadDeadline(time.Unix(1, 0)) } // as above

// clearDeadline clears the deadline of the connection.
func (p *pacedReader) clearDeadline() { _ = p.control.SetReadDeadline(time.Time{}) }
