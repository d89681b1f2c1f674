package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/internal/reach/stdioconn"
)

// stream is an attachment to a container's input and output.
type stream struct {
	conn net.Conn
	r    *bufio.Reader
	left int64 // of the standard output's piece that is being read

	mu        sync.Mutex
	complains []byte // the end of the standard error
}

// maxComplaint is how much of the standard error is kept, in bytes.
const maxComplaint = 1 << 10

func (b *sandbox) attachStream(ctx context.Context) (*stream, error) {
	limited, cancel := b.p.callContext(ctx)
	defer cancel()
	res, err := b.p.api.ContainerAttach(limited, b.container, client.ContainerAttachOptions{
		Stream: true, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		return nil, b.attachError(ctx, err)
	}
	return &stream{conn: res.Conn, r: res.Reader}, nil
}

// attachError classifies why a container cannot be attached to. The client of the engine does
// not say whether the container is gone: it sees an answer that does not upgrade.
func (b *sandbox) attachError(ctx context.Context, err error) error {
	err = b.p.engineError(ctx, "attach to the container", err)
	if sandpit.CodeOf(err) != sandpit.Internal {
		return err
	}
	if _, missing := b.p.inspectContainer(ctx, b.container); sandpit.CodeOf(missing) == sandpit.NotFound {
		return missing
	}
	return err
}

// attachTries is how often an engine may fail to attach to a container that does not run.
const attachTries = 20

// attachStill attaches to a container that does not run. Podman cannot while it clears
// away after the last time that it ran, and tells that as a failure of its own.
func (b *sandbox) attachStill(ctx context.Context) (*stream, error) {
	for tries := 1; ; tries++ {
		s, err := b.attachStream(ctx)
		if err == nil || sandpit.CodeOf(err) != sandpit.Internal || tries == attachTries {
			return s, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Read returns what the container puts out.
func (s *stream) Read(p []byte) (int, error) {
	for s.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return 0, err
		}
		size := int64(binary.BigEndian.Uint32(head[4:]))
		const stderr = 2
		if head[0] != stderr {
			s.left = size
			continue
		}
		if err := s.keepComplaint(size); err != nil {
			return 0, err
		}
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	return n, err
}

func (s *stream) keepComplaint(size int64) error {
	piece := make([]byte, min(size, maxComplaint))
	if _, err := io.CopyN(io.Discard, s.r, size-int64(len(piece))); err != nil {
		return err
	}
	if _, err := io.ReadFull(s.r, piece); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complains = append(s.complains, piece...)
	s.complains = s.complains[max(0, len(s.complains)-maxComplaint):]
	return nil
}

// stderrTail is the end of what came over the standard error, made fit to be shown.
func (s *stream) stderrTail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.TrimSpace(string(s.complains))
	if text == "" {
		return ""
	}
	return strconv.Quote(text)
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close implements io.Closer.
func (s *stream) Close() error { return s.conn.Close() }

// newLink makes a link over an attachment, or closes that if the provider is closed.
func (b *sandbox) newLink(s *stream) error {
	b.linking.Lock()
	defer b.linking.Unlock()
	_, err := b.tieLocked(s)
	return err
}

func (b *sandbox) tieLocked(s *stream) (*stdioconn.Link, error) {
	if b.p.calls.isOver() { // there is nobody left to close the link
		_ = s.Close() // nothing was sent over it
		return nil, errClosed
	}
	if old := b.exchangeLink(nil); old != nil {
		_ = old.Close() // never fails
	}
	link := stdioconn.NewLink(s, func(ctx context.Context) (io.ReadWriteCloser, error) { return b.attachAgain(ctx) })
	b.exchangeLink(link)
	if b.p.events.foundSignal() != nil { // it went away before there was a link to end
		link.Fail(b.p.awayError())
	}
	return link, nil
}

func (b *sandbox) currentLink() *stdioconn.Link {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.link
}

func (b *sandbox) exchangeLink(link *stdioconn.Link) (old *stdioconn.Link) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, b.link = b.link, link
	return old
}

// ensureLink returns the link, and makes it first if need be.
func (b *sandbox) ensureLink(ctx context.Context) (*stdioconn.Link, error) {
	b.linking.Lock()
	defer b.linking.Unlock()
	if link := b.currentLink(); link != nil {
		select {
		case <-link.Done():
		default:
			return link, nil
		}
	}
	if err := b.stateError(b.currentState()); err != nil {
		return nil, err
	}
	if err := b.p.checkReachable(ctx); err != nil {
		return nil, err
	}
	ctx, done := b.p.whileHere(ctx)
	defer done()
	s, err := b.attachStream(ctx)
	if err != nil {
		return nil, err
	}
	return b.tieLocked(s)
}

// failLink ends what goes over the link for that reason. A later call makes another one.
func (b *sandbox) failLink(err error) {
	if link := b.currentLink(); link != nil {
		link.Fail(err)
	}
}

// closeLink lets go of the container.
func (b *sandbox) closeLink() {
	b.linking.Lock()
	link := b.exchangeLink(nil)
	b.linking.Unlock()
	if link != nil {
		_ = link.Close() // never fails
	}
	b.guest.CloseIdleConnections()
}

// newTransport returns what speaks to the guest: all calls share one connection.
func (b *sandbox) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			link, err := b.ensureLink(ctx)
			if err != nil {
				return nil, err
			}
			return link.Dial(ctx)
		},
		MaxResponseHeaderBytes: 64 << 10, // the far end is untrusted
		DisableCompression:     true,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// explainFailure says why a call of the guest failed.
func (b *sandbox) explainFailure(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*sandpit.Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return err
	}
	b.awaitRemoval(ctx)
	if b.p.calls.isOver() {
		return errClosed
	}
	if b.p.events.foundSignal() != nil {
		return b.p.awayError()
	}
	asking, cancel := context.WithTimeout(ctx, explainTime)
	defer cancel()
	if refreshed := b.refreshState(asking); refreshed != nil {
		return refreshed
	}
	if why := b.stateError(b.currentState()); why != nil {
		return why
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection to sandbox %s broke: %w", b.id, err)
}

// explainGuest says why a call of the guest itself failed. A guest that is told to
// end says so before the engine knows.
func (b *sandbox) explainGuest(ctx context.Context, err error) error {
	for begin := time.Now(); ; {
		why := b.explainFailure(ctx, err)
		if ctx.Err() != nil || time.Since(begin) > endingTime || b.currentState() != running || b.p.calls.isOver() {
			return why
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.ended:
		case <-ctx.Done():
		}
	}
}

// endingTime is how long a guest may take to end.
const endingTime = 3 * time.Second

// explainTime bounds how long is asked for why a call failed.
const explainTime = 20 * time.Second

// caller makes calls of the guest.
type caller struct{ b *sandbox }

// RoundTrip implements http.RoundTripper.
func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.b.checkUsable(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // it was never read
		}
		return nil, err
	}
	res, err := c.b.guest.RoundTrip(r)
	if err != nil {
		return nil, c.b.explainGuest(r.Context(), err)
	}
	res.Body = &explained{ReadCloser: res.Body, ctx: r.Context(), b: c.b}
	return res, nil
}

// explained is the body of an answer, which may break in the middle.
type explained struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // the request's
	b   *sandbox
}

// Read implements io.Reader.
func (e *explained) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = e.b.explainGuest(e.ctx, err)
	}
	return n, err
}

// probeTime is how long the engine may take to say that a container runs.
const probeTime = 5 * time.Second

// probeGuest is a liveness.Probe. While the engine is away, or holds the container still, a
// guest cannot answer: that has limits of its own.
func (b *sandbox) probeGuest(ctx context.Context, asked func()) error {
	if err := b.p.checkReachable(ctx); err != nil {
		return err
	}
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	breaks := b.p.breaks.Load()
	asked()
	err := b.askHealth(ctx)
	if err == nil || !errors.Is(context.Cause(ctx), liveness.ErrSilent) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	if err := b.refreshState(ctx); err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "ask the engine: %w", err)
	}
	if err := b.stateError(b.currentState()); err != nil {
		return err
	}
	if b.p.breaks.Load() != breaks || b.p.events.foundSignal() != nil || b.isSaving() {
		return sandpit.Errorf(sandpit.Unavailable, "the engine was away, or held the container still")
	}
	return liveness.ErrSilent
}

// askHealth asks the guest whether it is there.
func (b *sandbox) askHealth(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := b.guest.RoundTrip(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
