package daytona

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// cookiePrefix begins the names of cookies in which Daytona keeps tokens of previews.
const cookiePrefix = "daytona-sandbox-auth-"

// previewTransport sends requests to a port of a sandbox without a guest: to the URL of the port's
// preview, with its token. If that URL cannot be reached, they go through the toolbox.
type previewTransport struct {
	b    *sandbox
	port int
}

// RoundTrip implements http.RoundTripper.
func (t previewTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.b.checkRequest(r, t.port); err != nil {
		closeBody(r)
		return nil, err
	}
	if !t.b.reachesPreviews() {
		return proxyTransport(t).RoundTrip(r)
	}
	to, err := t.b.previewOf(r.Context(), t.port, time.Time{})
	switch sandpit.CodeOf(err) {
	case "":
	case sandpit.Unsupported, sandpit.NotFound: // a server without previews
		return proxyTransport(t).RoundTrip(r)
	default:
		closeBody(r)
		return nil, err
	}
	body := &unsentBody{ReadCloser: r.Body}
	res, err := t.send(r, to, body)
	if isUnreachable(err) && !body.isSent() {
		t.b.avoidPreviews()
		return proxyTransport(t).RoundTrip(r)
	}
	if err := errors.Join(body.release(err != nil), err); err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	return t.check(r, to, res)
}

// send sends a request to the URL of a preview.
func (t previewTransport) send(r *http.Request, to previewTarget, body *unsentBody) (*http.Response, error) {
	target := strings.TrimSuffix(to.URL, "/") + "/" + strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, target, http.NoBody) //nolint:gosec // the API names the host
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if r.Body != nil && r.Body != http.NoBody {
		out.Body, out.ContentLength = body, r.ContentLength
	}
	out.Header = r.Header.Clone() // the caller's stays as it is
	out.Header.Set(TokenHeader, to.Token)
	out.Header.Set("X-Daytona-Skip-Preview-Warning", "true")
	return t.b.p.toolbox.http.RoundTrip(out)
}

// isUnreachable reports whether a request has failed because there was no connection for it.
func isUnreachable(err error) bool {
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return true
	}
	_, ok := errors.AsType[*net.DNSError](err)
	return ok
}

// check returns a response, unless the preview proxy says in it why the program has not answered. A
// token that is no longer valid is replaced, and the request is repeated if it has no body.
func (t previewTransport) check(r *http.Request, to previewTarget, res *http.Response) (*http.Response, error) {
	switch res.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTemporaryRedirect:
		return t.repeatWithNewToken(r, to, res)
	case http.StatusBadRequest:
		if err := t.checkRunning(r.Context(), res); err != nil {
			return nil, err
		}
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		err := t.b.checkFresh(r.Context())
		if err == nil && !t.b.isListening(r.Context(), t.port) {
			err = noProgram(t.port)
		}
		if err != nil {
			_ = res.Body.Close() // was not read
			return nil, err
		}
	}
	removeCookies(res.Header)
	return res, nil
}

// noProgram returns the error of a port at which no program listens.
func noProgram(port int) error {
	return sandpit.Errorf(sandpit.Unavailable, "no program answers at port %d", port)
}

// checkRunning returns an error if a response says that the sandbox does not run.
func (t previewTransport) checkRunning(ctx context.Context, res *http.Response) error {
	const most = 4 << 10
	if res.ContentLength < 0 || res.ContentLength > most {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, most))
	if err == nil && (&toolboxError{status: res.StatusCode, message: string(data)}).notRunning() {
		err = t.b.checkFresh(ctx)
	}
	if err != nil {
		_ = res.Body.Close() // was read
		return t.b.explainFailure(ctx, err)
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(data), res.Body}
	return nil
}

// repeatWithNewToken repeats a request if its token is not valid any more: it changes with each start
// of the sandbox. The program itself may also have refused the request.
func (t previewTransport) repeatWithNewToken(r *http.Request, to previewTarget, res *http.Response) (*http.Response, error) {
	removeCookies(res.Header)
	if r.Body != nil && r.Body != http.NoBody {
		t.b.forgetPreview(t.port, to)
		return res, nil
	}
	now, err := t.b.previewOf(r.Context(), t.port, to.read)
	if err != nil || now.Token == to.Token {
		return res, nil //nolint:nilerr // the response says what is wrong
	}
	_ = res.Body.Close() // was not read
	res, err = t.send(r, now, nil)
	if err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	removeCookies(res.Header)
	return res, nil
}

// removeCookies removes cookies that contain a token of Daytona.
func removeCookies(h http.Header) {
	cookies := h["Set-Cookie"]
	if len(cookies) == 0 {
		return
	}
	h.Del("Set-Cookie")
	for _, one := range cookies {
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(one)), cookiePrefix) {
			h.Add("Set-Cookie", one)
		}
	}
}

// unsentBody is the body of a request that goes another way if there is no connection for the first
// one: until it is read or released, it stays open.
type unsentBody struct {
	io.ReadCloser // nil: none

	mu     sync.Mutex
	sent   bool
	closed bool
}

// Read implements io.Reader.
func (u *unsentBody) Read(p []byte) (int, error) {
	u.mu.Lock()
	u.sent = true
	u.mu.Unlock()
	return u.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (u *unsentBody) Close() error {
	u.mu.Lock()
	u.closed = true
	keep := !u.sent
	u.mu.Unlock()
	if keep {
		return nil
	}
	return u.ReadCloser.Close()
}

// isSent reports whether a part of the body was read.
func (u *unsentBody) isSent() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sent
}

// release lets Close close the body, and closes it if Close was called before, or if it is not used
// any more.
func (u *unsentBody) release(unused bool) error {
	if u.ReadCloser == nil {
		return nil
	}
	u.mu.Lock()
	now := !u.sent && (u.closed || unused)
	u.sent = true
	u.mu.Unlock()
	if now {
		return u.ReadCloser.Close()
	}
	return nil
}

// previewPause is how long URLs of previews are not used after one was unreachable.
const previewPause = time.Minute

// reachesPreviews reports whether URLs of previews may be reachable.
func (b *sandbox) reachesPreviews() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().After(b.noPreviews)
}

// avoidPreviews records that the URL of a preview is unreachable.
func (b *sandbox) avoidPreviews() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noPreviews = time.Now().Add(previewPause)
}

// previewTarget is the preview of a port, and when it was read.
type previewTarget struct {
	preview

	read time.Time
}

// previewAge is how long the preview of a port is used before a refusal has it read again.
const previewAge = 2 * time.Second

// previewOf returns the preview of a port. If refused is set, a preview that was read then is read
// again, unless that was just now.
func (b *sandbox) previewOf(ctx context.Context, port int, refused time.Time) (previewTarget, error) {
	b.mu.Lock()
	known, ok := b.previews[port]
	b.mu.Unlock()
	if ok && (!known.read.Equal(refused) || time.Since(known.read) < previewAge) {
		return known, nil
	}
	v, err := b.p.control.getPreview(ctx, b.id, b.ref, port)
	if err != nil {
		return previewTarget{}, err
	}
	if err := b.p.toolbox.checkURL(v.URL); err != nil {
		return previewTarget{}, err
	}
	now := previewTarget{v, time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.previews[port] = now
	return now, nil
}

// forgetPreview forgets the preview of a port, unless it has been read again.
func (b *sandbox) forgetPreview(port int, old previewTarget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.previews[port] == old && time.Since(old.read) >= previewAge {
		delete(b.previews, port)
	}
}

// isListening reports whether a program listens at a port. It is true if the toolbox does not tell.
func (b *sandbox) isListening(ctx context.Context, port int) bool {
	var answer struct {
		InUse *bool `json:"isInUse"`
	}
	err := b.readJSON(ctx, toolCall{method: http.MethodGet, path: "/port/" + strconv.Itoa(port) + "/in-use"}, &answer)
	return err != nil || answer.InUse == nil || *answer.InUse
}
