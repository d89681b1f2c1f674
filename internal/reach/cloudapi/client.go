// Package cloudapi is a client for the control API of a vendor's cloud: JSON over HTTP. It bounds
// and checks responses, repeats calls that are safe to repeat, and returns errors with a code, the
// provider, the sandbox and the operation.
//
// The responses of a cloud are untrusted: bodies are bounded, redirects are not followed, and no key
// is repeated in an error.
package cloudapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Options are the options of a Client. The zero value of a field means the default stated with it.
type Options struct {
	// Provider is the name of the provider in errors, and Vendor what the vendor calls itself.
	Provider, Vendor string
	// Endpoint is the base URL: http or https, without a query.
	Endpoint string
	// Header is sent with each call. It contains the key.
	Header http.Header
	// Secrets are texts that no error may contain. Each value of the headers that carry keys is
	// one, too: Authorization, and those whose names end in "Key" or "Token".
	Secrets []string
	// KeyHint says where a valid key comes from and how it is set. Default: none.
	KeyHint string
	// Timeout bounds each attempt of a call that has no timeout of its own. Default: 30 s.
	Timeout time.Duration
	// Attempts bounds how often a call is sent, and Budget how long it is repeated. Defaults: 5,
	// and 1 min.
	Attempts int
	Budget   time.Duration
	// Backoff is the delay before the second attempt; it doubles with each attempt up to
	// MaxBackoff. Defaults: 500 ms, 10 s.
	Backoff, MaxBackoff time.Duration
	// Transport sends the requests. Default: one of its own, with the proxy of the environment.
	Transport http.RoundTripper
}

func (o Options) withDefaults() Options {
	o.Vendor = cmp.Or(o.Vendor, o.Provider)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Budget = cmp.Or(o.Budget, time.Minute)
	o.Backoff = cmp.Or(o.Backoff, 500*time.Millisecond)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, 10*time.Second)
	return o
}

// Client calls an API. All methods may be called concurrently.
type Client struct {
	o       Options
	base    *url.URL
	http    *http.Client
	secrets []string
	own     *http.Transport // nil if Options has the transport
}

// New returns a client.
//
// Invalid: the endpoint is not a URL.
func New(o Options) (*Client, error) {
	o = o.withDefaults()
	base, err := url.Parse(strings.TrimRight(o.Endpoint, "/"))
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, sandpit.Errorf(sandpit.Invalid, "provider %s: invalid API URL %.200q: want http:// or https:// and a host", o.Provider, withoutUser(o.Endpoint))
	}
	if base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "provider %s: invalid API URL for host %q: it must not contain a user, a query or a fragment", o.Provider, base.Host)
	}
	c := &Client{o: o, base: base, secrets: slices.Clone(o.Secrets)}
	for name, values := range o.Header {
		for _, value := range values {
			if !isHeaderValue(value) {
				return nil, sandpit.Errorf(sandpit.Invalid, "provider %s: the key, or another value for the header %s, contains characters that cannot be sent", o.Provider, name)
			}
			if isKeyHeader(name) {
				c.secrets = append(c.secrets, strings.TrimPrefix(value, "Bearer "))
			}
		}
	}
	transport := o.Transport
	if transport == nil {
		c.own = newTransport()
		transport = c.own
	}
	c.http = &http.Client{
		Transport: transport,
		// A redirect could lead to a host that must not receive the key.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// isKeyHeader reports whether the values of a header are keys.
func isKeyHeader(name string) bool {
	name = strings.ToLower(name)
	return name == "authorization" || strings.HasSuffix(name, "key") || strings.HasSuffix(name, "token")
}

// isHeaderValue reports whether a header can have a value.
func isHeaderValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f })
}

// withoutUser returns a text that may be a URL without its user and password.
func withoutUser(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		return text[at+1:]
	}
	return text
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    15 * time.Second,
	}
}

// Endpoint returns the base URL, which contains no secret.
func (c *Client) Endpoint() string { return c.base.String() }

// Close closes idle connections.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Call is a call of an API.
type Call struct {
	// Operation and Sandbox say in errors what was being done. Sandbox may be "".
	Operation string
	Sandbox   sandpit.ID
	// Method is the HTTP method, and Path the path below the base URL, already escaped.
	Method, Path string
	Query        url.Values
	// Body is sent as JSON. Default: no body.
	Body any
	// Into receives the JSON of a successful response. Default: the body is ignored.
	Into any
	// Repeatable says that the call may be sent again although an earlier attempt may have been
	// carried out. Default: it is for GET, HEAD, PUT and DELETE only.
	Repeatable bool
	// Expected are statuses besides 2xx that are not errors.
	Expected []int
	// Missing is the code of an error 404. Default: NotFound.
	Missing sandpit.Code
	// Timeout bounds each attempt. Default: Options.Timeout.
	Timeout time.Duration
}

// isRepeatable reports whether the call may be carried out twice.
func (call Call) isRepeatable() bool {
	switch call.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
		return true
	}
	return call.Repeatable
}

// Response is a successful response.
type Response struct {
	Status int
	Header http.Header
}

// Do carries out a call. It repeats the call while that is safe and may help: after 429 and 503,
// when the connection is refused, and after other failures only if the call is repeatable. It waits
// as long as Retry-After says, or with exponential backoff.
//
// Unauthenticated: wrong or expired key. PermissionDenied, NotFound, Conflict, Invalid, Exhausted,
// Unsupported: as the API says. Unavailable: the API cannot be reached, or is overloaded; see
// MayHaveHappened. Timeout: the call's own timeout passed. Internal: a response that violates the
// protocol.
func (c *Client) Do(ctx context.Context, call Call) (Response, error) {
	var body []byte
	if call.Body != nil {
		var err error
		if body, err = json.Marshal(call.Body); err != nil {
			return Response{}, sandpit.Errorf(sandpit.Internal, "%s: encode the request: %w", call.Operation, err)
		}
	}
	response, err := c.repeat(ctx, call, body)
	if err != nil {
		return Response{}, sandpit.WithSubject(err, sandpit.Subject{Provider: c.o.Provider, Sandbox: call.Sandbox, Operation: call.Operation})
	}
	return response, nil
}

// newRequest returns a request for an attempt of a call.
func (c *Client) newRequest(ctx context.Context, call Call, body []byte) (*http.Request, error) {
	target := c.base.String() + call.Path
	if len(call.Query) > 0 {
		target += "?" + call.Query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, call.Method, target, http.NoBody)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "%s: %w", call.Operation, err)
	}
	if body != nil {
		r.Body = readCloser{bytes.NewReader(body)}
		r.ContentLength = int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	for name, values := range c.o.Header {
		r.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	r.Header.Set("Accept", "application/json")
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", "sandpit")
	}
	return r, nil
}

// readCloser is a body that the transport cannot rewind: only this package repeats requests.
type readCloser struct{ *bytes.Reader }

// Close implements io.Closer.
func (readCloser) Close() error { return nil }

// describe returns the beginning of an error: the provider, the sandbox and the operation.
func (c *Client) describe(call Call) string {
	if call.Sandbox == "" {
		return fmt.Sprintf("provider %s: %s", c.o.Provider, call.Operation)
	}
	return fmt.Sprintf("provider %s: %s of sandbox %s", c.o.Provider, call.Operation, call.Sandbox)
}
