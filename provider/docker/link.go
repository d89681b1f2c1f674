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
	left int64 // bytes of the current frame of standard output that are not read yet

	mu        sync.Mutex
	complaint []byte // the end of the standard error
}

// maxComplaint is how much of the standard error is kept, in bytes.
const maxComplaint = 1 << 10

func (b *sandbox) attachStream(ctx context.Context) (*stream, error) {
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	res, err := b.p.engine.api.ContainerAttach(limited, b.container, client.ContainerAttachOptions{
		Stream: true, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		return nil, b.attachError(ctx, err)
	}
	return &stream{conn: res.Conn, r: res.Reader}, nil
}

// attachError returns the error of a failed attachment. The engine's client does not report a missing
// container: it only sees a response without the upgrade.
func (b *sandbox) attachError(ctx context.Context, err error) error {
	err = b.p.engine.wrapError(ctx, "attach to the container", err)
	if sandpit.CodeOf(err) != sandpit.Internal {
		return err
	}
	if _, missing := b.p.engine.inspectContainer(ctx, b.container); sandpit.CodeOf(missing) == sandpit.NotFound {
		return missing
	}
	return err
}

// attachTries is how often an engine may fail to attach to a container that does not run.
const attachTries = 20

// attachStill attaches to a container that does not run. Podman reports an internal failure while it
// cleans up after the previous run, so it retries.
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

// Read returns the standard output of the container.
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
	s.complaint = append(s.complaint, piece...)
	s.complaint = s.complaint[max(0, len(s.complaint)-maxComplaint):]
	return nil
}

// stderrTail returns the end of the standard error, quoted, or "".
func (s *stream) stderrTail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.TrimSpace(string(s.complaint))
	if text == "" {
		return ""
	}
	return strconv.Quote(text)
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close implements io.Closer.
func (s *stream) Close() error { return s.conn.Close() }

// newLink creates the link over an attachment. It closes the attachment if the provider is closed.
func (b *sandbox) newLink(s *stream) error {
	b.linking.Lock()
	defer b.linking.Unlock()
	_, err := b.tieLocked(s)
	return err
}

func (b *sandbox) tieLocked(s *stream) (*stdioconn.Link, error) {
	if b.p.engine.calls.isOver() { // Close would miss the link
		_ = s.Close() // nothing was sent over it
		return nil, errClosed
	}
	if old := b.exchangeLink(nil); old != nil {
		_ = old.Close() // never fails
	}
	link := stdioconn.NewLink(s, func(ctx context.Context) (io.ReadWriteCloser, error) { return b.attachAgain(ctx) })
	b.exchangeLink(link)
	if b.p.events.foundSignal() != nil { // the engine was lost before the link existed
		link.Fail(b.p.events.awayError())
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

// ensureLink returns the link, and creates it first if it is missing.
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
	if err := b.p.events.checkReachable(ctx); err != nil {
		return nil, err
	}
	ctx, done := b.p.events.contextWhileReachable(ctx)
	defer done()
	s, err := b.attachStream(ctx)
	if err != nil {
		return nil, err
	}
	return b.tieLocked(s)
}

// failLink ends the link with an error. A later call creates another one.
func (b *sandbox) failLink(err error) {
	if link := b.currentLink(); link != nil {
		link.Fail(err)
	}
}

// closeLink detaches from the container.
func (b *sandbox) closeLink() {
	b.linking.Lock()
	link := b.exchangeLink(nil)
	b.linking.Unlock()
	if link != nil {
		_ = link.Close() // never fails
	}
	b.guest.CloseIdleConnections()
}

// newTransport returns the transport to the guest. All calls share one connection.
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

// explainFailure returns the reason of a failed call into the sandbox.
func (b *sandbox) explainFailure(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*sandpit.Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return err
	}
	b.awaitRemoval(ctx)
	if b.p.engine.calls.isOver() {
		return errClosed
	}
	if b.p.events.foundSignal() != nil {
		return b.p.events.awayError()
	}
	limited, cancel := context.WithTimeout(ctx, explainTime)
	defer cancel()
	if refreshed := b.refreshState(limited); refreshed != nil {
		return refreshed
	}
	if why := b.stateError(b.currentState()); why != nil {
		return why
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection to sandbox %s broke: %w", b.id, err)
}

// explainGuest returns the reason of a failed call of the guest itself. It waits for the engine's
// state, because a guest may end before the engine reports it.
func (b *sandbox) explainGuest(ctx context.Context, err error) error {
	for begin := time.Now(); ; {
		why := b.explainFailure(ctx, err)
		if ctx.Err() != nil || time.Since(begin) > endingTime || b.currentState() != running || b.p.engine.calls.isOver() {
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

// explainTime bounds the search for the reason of a failed call.
const explainTime = 20 * time.Second

// caller sends requests to the guest.
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

// explained is the body of a response. It returns the reason when it breaks.
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

// probeTime is how long the engine may take to report that a container runs.
const probeTime = 5 * time.Second

// probeGuest is a liveness.Probe. A guest cannot answer while the engine is lost or freezes the
// container; other limits apply to that.
func (b *sandbox) probeGuest(ctx context.Context, asked func()) error {
	if err := b.p.events.checkReachable(ctx); err != nil {
		return err
	}
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	breaks := b.p.events.breaks.Load()
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
	if b.p.events.breaks.Load() != breaks || b.p.events.foundSignal() != nil || b.isSaving() {
		return sandpit.Errorf(sandpit.Unavailable, "the engine was lost, or froze the container")
	}
	return liveness.ErrSilent
}

// askHealth requests the health check of the guest.
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
