package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// maxAnswer bounds what is read of an answer that is not a stream.
const maxAnswer = 64 << 20

// maxProblem bounds what is read of a failure, in bytes.
const maxProblem = 1 << 20

// call is one request for something that fits into memory.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	in, out      any // out may be nil
	again        bool
	untimed      bool // the context alone says how long it may take
}

// path joins the parts of a path, each escaped.
func path(parts ...string) string {
	var b strings.Builder
	b.WriteString(wire.Prefix)
	for _, part := range parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(part))
	}
	return b.String()
}

// do makes the call, again if it may be and the server is away for a moment.
func (c *Client) do(ctx context.Context, r call) error {
	if !r.untimed {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
	}
	var text []byte
	if r.in != nil {
		var err error
		if text, err = json.Marshal(r.in); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "a request that cannot be written down: %w", err)
		}
	}
	if !r.again {
		return c.once(ctx, r, text)
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := c.once(ctx, r, text)
		switch after := sandpit.RetryAfterOf(err); {
		case err == nil:
			return struct{}{}, nil
		case sandpit.CodeOf(err) != sandpit.Unavailable || after > maxRetryAfter:
			return struct{}{}, backoff.Permanent(err) // send has repeated what was Exhausted
		case after > 0:
			return struct{}{}, &waiting{&backoff.RetryAfterError{Duration: after}, err}
		default:
			return struct{}{}, err
		}
	}, backoff.WithMaxTries(uint(c.o.Attempts)), backoff.WithBackOff(pauses()), backoff.WithMaxElapsedTime(0))
	if permanent, ok := errors.AsType[*backoff.PermanentError](err); ok {
		return permanent.Err
	}
	if w, ok := errors.AsType[*waiting](err); ok {
		return w.cause
	}
	return err
}

// waiting is a failure that the server has said when to try again after.
type waiting struct {
	after *backoff.RetryAfterError
	cause error
}

// Error implements error.
func (w *waiting) Error() string { return w.cause.Error() }

// Unwrap returns the time, which backoff looks for, and the failure.
func (w *waiting) Unwrap() []error { return []error{w.after, w.cause} }

func pauses() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, 5*time.Second
	return b
}

func (c *Client) once(ctx context.Context, r call, text []byte) error {
	var content io.Reader
	if text != nil {
		content = bytes.NewReader(text)
	}
	req, err := c.request(ctx, r.method, r.path, r.query, content)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, r.header)
	if text != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if r.out == nil {
		return nil
	}
	return decode(res, r.out)
}

// decode reads an answer that fits into memory.
func decode(res *http.Response, out any) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(data) > maxAnswer:
		return sandpit.Errorf(sandpit.Exhausted, "the server's answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return notSandpit(res, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, method, escaped string, query url.Values, content io.Reader) (*http.Request, error) {
	target := c.base.Scheme + "://" + c.base.Host + c.base.EscapedPath() + escaped
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "no request can be made of this: %w", err)
	}
	return r, nil
}

// send makes a request and turns every answer but 2xx into an error.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	res, err := c.http.Do(r)
	if err != nil {
		return nil, unwrapURL(err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, problemError(res)
}

// unwrapURL takes off what http.Client puts around: method and address, which the
// caller knows.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// isProblem reports whether an answer tells of a failure of the server's own.
func isProblem(res *http.Response) bool {
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err == nil && kind == wire.ContentTypeProblem
}

// problemError is what an answer that is no success says.
func problemError(res *http.Response) error {
	if !isProblem(res) {
		return notSandpit(res, nil)
	}
	var p wire.Problem
	data, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Code == "" {
		return notSandpit(res, err)
	}
	err = toError(p)
	if after := retryAfterOf(res.Header, time.Now()); after > 0 && sandpit.Retryable(err) {
		err = sandpit.WithRetry(err, after)
	}
	return err
}

// toError is the error that a problem tells of: sandpit.Retryable, sandpit.SubjectOf and
// sandpit.RequestIDOf say what the problem says.
func toError(p wire.Problem) error {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	var faults []string
	for _, f := range p.Errors {
		faults = append(faults, strings.TrimPrefix(f.Location+": "+f.Message, ": "))
	}
	if len(faults) > 0 {
		text += ": " + strings.Join(faults, "; ")
	}
	return &sandpit.Error{
		Code: p.Code, Err: errors.New(cut(text)), Hint: cut(p.Hint), Retry: p.Retryable, RequestID: cut(p.RequestID),
		Subject: sandpit.Subject{Provider: cut(p.Provider), Sandbox: sandpit.ID(cut(string(p.Sandbox))), Operation: cut(p.Operation)},
	}
}

// cut bounds what a server may have said to somebody who only wants to know what is
// wrong.
func cut(text string) string {
	const maxLength = 4 << 10
	return textlen.Shorten(text, maxLength)
}

// notSandpit is for an answer that no sandpit server gives.
func notSandpit(res *http.Response, cause error) error {
	text := "unexpected response (HTTP " + strconv.Itoa(res.StatusCode) + "): not a sandpit server"
	if cause != nil {
		text += " (" + cause.Error() + ")"
	}
	code := sandpit.Internal
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = sandpit.Unavailable // of something in between
	}
	hint := "look at what listens there, or what is in between"
	// Go's servers, and others, answer so to plain HTTP at a port for HTTPS.
	if res.StatusCode == http.StatusBadRequest && res.Request != nil && res.Request.URL.Scheme == "http" {
		hint = "it may expect HTTPS: https://" + res.Request.URL.Host + "; else " + hint
	}
	return sandpit.WithHint(sandpit.Errorf(code, "%s", text), hint)
}

// body tells a connection that broke from an end.
type body struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // of the request, whose answer this is
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if b.ctx.Err() != nil {
		return n, context.Cause(b.ctx)
	}
	return n, sandpit.Errorf(sandpit.Unavailable, "the connection to the server broke: %w", err)
}
