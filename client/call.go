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

// maxResponse bounds a response that is not a stream, in bytes.
const maxResponse = 64 << 20

// maxProblem bounds the body of an error response, in bytes.
const maxProblem = 1 << 20

// call is one request whose response fits into memory.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	// in is sent as JSON and out is decoded from JSON; nil means no body.
	in, out any
	// idempotent requests are sent again when the server cannot be reached.
	idempotent bool
	// untimed requests are bounded by the context only, not by Options.Timeout.
	untimed bool
}

// apiPath returns the escaped path of an API resource.
func apiPath(parts ...string) string {
	var b strings.Builder
	b.WriteString(wire.Prefix)
	for _, part := range parts {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(part))
	}
	return b.String()
}

// doCall sends a request. An idempotent one is sent again with backoff while the server is
// unavailable.
func (c *Client) doCall(ctx context.Context, r call) error {
	if !r.untimed {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
	}
	var text []byte
	if r.in != nil {
		var err error
		if text, err = json.Marshal(r.in); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "encode the request: %w", err)
		}
	}
	if !r.idempotent {
		return c.tryCall(ctx, r, text)
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := c.tryCall(ctx, r, text)
		switch after := sandpit.RetryAfterOf(err); {
		case err == nil:
			return struct{}{}, nil
		case sandpit.CodeOf(err) != sandpit.Unavailable || after > maxRetryAfter:
			return struct{}{}, backoff.Permanent(err) // retryTransport has repeated Exhausted
		case after > 0:
			return struct{}{}, &retryLaterError{&backoff.RetryAfterError{Duration: after}, err}
		default:
			return struct{}{}, err
		}
	}, backoff.WithMaxTries(uint(c.o.Attempts)), backoff.WithBackOff(newBackoff()), backoff.WithMaxElapsedTime(0))
	if permanent, ok := errors.AsType[*backoff.PermanentError](err); ok {
		return permanent.Err
	}
	if w, ok := errors.AsType[*retryLaterError](err); ok {
		return w.cause
	}
	return err
}

// retryLaterError is a failure for which the server returned Retry-After.
type retryLaterError struct {
	after *backoff.RetryAfterError
	cause error
}

// Error implements error.
func (w *retryLaterError) Error() string { return w.cause.Error() }

// Unwrap returns the delay, which package backoff looks for, and the failure.
func (w *retryLaterError) Unwrap() []error { return []error{w.after, w.cause} }

// newBackoff returns the delays between attempts: exponential, from 100 ms to 5 s.
func newBackoff() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, 5*time.Second
	return b
}

// tryCall sends a request once. The text is the encoded body.
func (c *Client) tryCall(ctx context.Context, r call, text []byte) error {
	var content io.Reader
	if text != nil {
		content = bytes.NewReader(text)
	}
	req, err := c.newRequest(ctx, r.method, r.path, r.query, content)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, r.header)
	if text != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.sendRequest(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if r.out == nil {
		return nil
	}
	return decodeJSON(res, r.out)
}

// decodeJSON decodes a response that fits into memory.
func decodeJSON(res *http.Response, out any) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxResponse+1))
	switch {
	case err != nil:
		return err
	case len(data) > maxResponse:
		return sandpit.Errorf(sandpit.Exhausted, "the server's response has more than %d bytes", maxResponse)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return newForeignResponseError(res, err)
	}
	return nil
}

// newRequest returns a request for a path that is already escaped.
func (c *Client) newRequest(ctx context.Context, method, escaped string, query url.Values, content io.Reader) (*http.Request, error) {
	target := c.base.Scheme + "://" + c.base.Host + c.base.EscapedPath() + escaped
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "create the request: %w", err)
	}
	return r, nil
}

// sendRequest sends a request. A response whose status is not 2xx becomes an error.
func (c *Client) sendRequest(r *http.Request) (*http.Response, error) {
	res, err := c.http.Do(r)
	if err != nil {
		return nil, unwrapURL(err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, readProblemError(res)
}

// unwrapURL removes the method and address that http.Client adds to an error: the caller knows
// them.
func unwrapURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// isProblem reports whether a response is an error of the server's API.
func isProblem(res *http.Response) bool {
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err == nil && kind == wire.ContentTypeProblem
}

// readProblemError returns the error that a response without success describes.
func readProblemError(res *http.Response) error {
	if !isProblem(res) {
		return newForeignResponseError(res, nil)
	}
	var p wire.Problem
	data, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Code == "" {
		return newForeignResponseError(res, err)
	}
	err = newProblemError(p)
	if after := parseRetryAfter(res.Header, time.Now()); after > 0 && sandpit.Retryable(err) {
		err = sandpit.WithRetry(err, after)
	}
	return err
}

// newProblemError returns the error that a problem describes, with its code, hint, subject and
// request ID.
func newProblemError(p wire.Problem) error {
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
		Code: p.Code, Err: errors.New(truncateText(text)), Hint: truncateText(p.Hint), Retry: p.Retryable, RequestID: truncateText(p.RequestID),
		Subject: sandpit.Subject{Provider: truncateText(p.Provider), Sandbox: sandpit.ID(truncateText(string(p.Sandbox))), Operation: truncateText(p.Operation)},
	}
}

// truncateText bounds a text of the server that becomes a part of an error.
func truncateText(text string) string {
	const maxLength = 4 << 10
	return textlen.Shorten(text, maxLength)
}

// newForeignResponseError returns the error for a response that no sandpit server sends. The
// cause may be nil.
func newForeignResponseError(res *http.Response, cause error) error {
	text := "unexpected response (HTTP " + strconv.Itoa(res.StatusCode) + "): not a sandpit server"
	if cause != nil {
		text += " (" + cause.Error() + ")"
	}
	code := sandpit.Internal
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = sandpit.Unavailable // a proxy responded
	}
	hint := "check what listens at this address, and proxies on the way"
	// Servers in Go, and others, respond with 400 to plain HTTP at a port for HTTPS.
	if res.StatusCode == http.StatusBadRequest && res.Request != nil && res.Request.URL.Scheme == "http" {
		hint = "it may expect HTTPS: https://" + res.Request.URL.Host + "; otherwise " + hint
	}
	return sandpit.WithHint(sandpit.Errorf(code, "%s", text), hint)
}

// responseBody returns an error that tells a broken connection from the end of a response.
type responseBody struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // of the request
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if b.ctx.Err() != nil {
		return n, context.Cause(b.ctx)
	}
	return n, sandpit.Errorf(sandpit.Unavailable, "connection to the server lost: %w", err)
}
