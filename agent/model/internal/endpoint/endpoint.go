// Package endpoint sends requests to the HTTP API of a vendor of models. It repeats requests
// within a budget, reads streams of events, and turns failures into errors without secrets.
package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Bounds of responses, in bytes.
const (
	maxEvent    = 16 << 20
	maxResponse = 64 << 20
	maxProblem  = 256 << 10
)

// Endpoint is one URL of an API.
type Endpoint struct {
	url     string
	host    string
	header  http.Header
	secrets []string
	calls   model.Calls
}

// Options describe an Endpoint.
type Options struct {
	// URL is the complete address of requests, which http or https must begin.
	URL string
	// Key is the secret that KeyHeader contains after KeyPrefix. "": none is sent.
	Key, KeyHeader, KeyPrefix string
	// Header is sent in addition.
	Header http.Header
	// Calls says how requests are sent.
	Calls model.Calls
}

// New returns an endpoint. It opens no connection.
//
// Invalid: the URL or the key.
func New(o Options) (*Endpoint, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid base URL of the model; use for example https://api.openai.com/v1")
	}
	for _, c := range []byte(o.Key) {
		if c <= ' ' || c > '~' {
			return nil, sandpit.Errorf(sandpit.Invalid, "invalid API key of the model: it contains a space, a control character or a letter outside of ASCII")
		}
	}
	e := &Endpoint{url: o.URL, host: u.Host, header: http.Header{}, calls: withDefaults(o.Calls)}
	maps.Copy(e.header, o.Header)
	e.header.Set("Content-Type", "application/json")
	e.header.Set("Accept", "text/event-stream")
	e.header.Set("User-Agent", "sandpit")
	if o.Key != "" {
		e.header.Set(o.KeyHeader, o.KeyPrefix+o.Key)
		e.secrets = append(e.secrets, o.Key)
	}
	return e, nil
}

func withDefaults(c model.Calls) model.Calls {
	client := &http.Client{}
	if c.Client != nil {
		*client = *c.Client
	}
	// A redirect would carry the key and the conversation to a host that is not configured.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.Client = client
	c.Attempts = cmp.Or(c.Attempts, 5)
	c.RetryTime = cmp.Or(c.RetryTime, time.Minute)
	c.RetryDelay = cmp.Or(c.RetryDelay, 500*time.Millisecond)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	return c
}

// Reader assembles the message of one response.
type Reader interface {
	// ReadEvent takes one event of the stream. io.EOF: the response is complete.
	ReadEvent(name string, data []byte) error
	// Finish is called when the stream has ended without io.EOF. An error says that something is
	// missing.
	Finish() error
	// Delivered reports whether a part of the message has reached the caller.
	Delivered() bool
}

// ErrIncomplete says that a stream ended in the middle of a message.
var ErrIncomplete = errors.New("the connection ended in the middle of the response")

// Stream sends a document and has a reader from newReader assemble the response. It repeats the
// request as Calls says, each time with a new reader, and returns the last one.
func Stream[R Reader](ctx context.Context, e *Endpoint, document any, newReader func() R) (R, error) {
	body, err := json.Marshal(document)
	if err != nil {
		var none R
		return none, sandpit.Errorf(sandpit.Invalid, "encode the conversation: %w", err)
	}
	budget := newBudget(e.calls)
	for {
		r := newReader()
		err := e.stream(ctx, body, r)
		if err == nil || r.Delivered() || ctx.Err() != nil || !sandpit.Retryable(err) {
			return r, err
		}
		if !budget.wait(ctx, sandpit.RetryAfterOf(err)) {
			return r, err
		}
	}
}

// stream sends the request once.
func (e *Endpoint) stream(ctx context.Context, body []byte, r Reader) error {
	sent, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(e.calls.IdleTimeout, func() { cancel(errIdle) })
	defer idle.Stop()
	req, err := http.NewRequestWithContext(sent, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "invalid base URL of the model")
	}
	req.Header = e.header.Clone()
	res, err := e.calls.Client.Do(req)
	if err != nil {
		return e.connectionError(sent, err)
	}
	defer res.Body.Close()
	content := &boundedReader{from: res.Body, left: maxResponse, active: func() { idle.Reset(e.calls.IdleTimeout) }}
	if res.StatusCode != http.StatusOK {
		return e.responseError(res, content)
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return e.failure(sandpit.Internal, "the response is %q, not a stream of events; is the base URL right?", res.Header.Get("Content-Type"))
	}
	if err := e.readEvents(content, r); err != nil {
		return e.streamError(sent, err)
	}
	return nil
}

// boundedReader reports activity, and fails after too many bytes.
type boundedReader struct {
	from   io.Reader
	left   int
	active func()
}

var errTooLarge = errors.New("the response is larger than 64 MiB")

// Read implements io.Reader.
func (r *boundedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.active()
	if r.left -= n; r.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
