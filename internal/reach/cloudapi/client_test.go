package cloudapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "key_0123456789abcdef" // of no account

// newClient returns a client of a server, with short delays. Its timeouts are for a busy machine: calls that end by time
// have a timeout of their own.
func newClient(t *testing.T, h http.HandlerFunc) *cloudapi.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return clientOf(t, server.URL)
}

func clientOf(t *testing.T, url string) *cloudapi.Client {
	t.Helper()
	c, err := cloudapi.New(cloudapi.Options{
		Provider: "vendor", Vendor: "Vendor", Endpoint: url, Header: http.Header{"X-Api-Key": {secret}}, KeyHint: "set VENDOR_KEY",
		Backoff: time.Millisecond, Timeout: 5 * time.Minute, Budget: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

const sandbox = sandpit.ID("saaaaaaaaaaaaaaaaaaa")

func call(method string) cloudapi.Call {
	return cloudapi.Call{Operation: "create", Sandbox: sandbox, Method: method, Path: "/things"}
}

// TestErrors compares the code and the text of each kind of error.
func TestErrors(t *testing.T) {
	t.Parallel()
	const what = "provider vendor: create of sandbox saaaaaaaaaaaaaaaaaaa: "
	for name, tc := range map[string]struct {
		status int
		body   string
		code   sandpit.Code
		text   string
		hint   string
	}{
		"wrong key":       {401, `{"message":"bad key ` + secret + `"}`, sandpit.Unauthenticated, "Vendor rejects the API key: bad key [secret]", "set VENDOR_KEY"},
		"expired key":     {401, `{"error":"Key expired."}`, sandpit.Unauthenticated, "the API key of Vendor has expired: Key expired", "set VENDOR_KEY"},
		"quota":           {403, `{"message":"Total memory quota exceeded"}`, sandpit.Exhausted, "a quota of the account at Vendor is used up: Total memory quota exceeded", "delete sandboxes, or raise the account's limits"},
		"concurrency":     {429, `{"message":"maximum number of concurrent sandboxes"}`, sandpit.Exhausted, "a quota of the account at Vendor is used up: maximum number of concurrent sandboxes", "delete sandboxes, or raise the account's limits"},
		"payment":         {402, `{}`, sandpit.Exhausted, "a quota of the account at Vendor is used up: HTTP 402 Payment Required", "delete sandboxes, or raise the account's limits"},
		"forbidden":       {403, `{"message":"no"}`, sandpit.PermissionDenied, "Vendor does not permit it: no", ""},
		"missing":         {404, `{"message":"template 'x' not found"}`, sandpit.NotFound, "not found: template 'x' not found", ""},
		"conflict":        {409, `{"error":{"message":"it is paused"}}`, sandpit.Conflict, "it is paused", ""},
		"invalid":         {400, `{"message":["a is missing","b is negative"]}`, sandpit.Invalid, "a is missing b is negative", ""},
		"unsupported":     {501, `nothing of that kind`, sandpit.Unsupported, "nothing of that kind", ""},
		"page":            {502, "<html>\x00", sandpit.Unavailable, "HTTP 502 Bad Gateway", ""},
		"unknown status":  {418, "", sandpit.Internal, "HTTP 418 I'm a teapot", ""},
		"control letters": {400, "{\"message\":\"a\\u0000\\u001b[31m\\nb\"}", sandpit.Invalid, "a\ufffd\ufffd[31m b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			_, err := c.Do(t.Context(), call(http.MethodPost))
			if err == nil || sandpit.CodeOf(err) != tc.code || err.Error() != what+tc.text || sandpit.HintOf(err) != tc.hint {
				t.Errorf("got %v (%s; hint %q)\nwant %s (%s; hint %q)", err, sandpit.CodeOf(err), sandpit.HintOf(err), what+tc.text, tc.code, tc.hint)
			}
			want := sandpit.Subject{Provider: "vendor", Sandbox: sandbox, Operation: "create"}
			if got := sandpit.SubjectOf(err); got != want {
				t.Errorf("the error concerns %+v", got)
			}
			if cloudapi.StatusOf(err) != tc.status {
				t.Errorf("status %d", cloudapi.StatusOf(err))
			}
		})
	}
}

// TestRepeats counts how often a call is sent that fails at first.
func TestRepeats(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		call      cloudapi.Call
		fail      func(http.ResponseWriter)
		sent      int32
		ok        bool
		uncertain bool
	}{
		"429":              {call(http.MethodPost), answer(429, "rate limit"), 3, true, false},
		"503":              {call(http.MethodPost), answer(503, ""), 3, true, false},
		"quota":            {call(http.MethodPost), answer(429, "quota"), 1, false, false},
		"500 of a POST":    {call(http.MethodPost), answer(500, ""), 1, false, true},
		"500 of a GET":     {call(http.MethodGet), answer(500, ""), 3, true, false},
		"cut POST":         {call(http.MethodPost), cut, 1, false, true},
		"cut DELETE":       {call(http.MethodDelete), cut, 3, true, false},
		"cut safe POST":    {cloudapi.Call{Method: http.MethodPost, Path: "/", Repeatable: true}, cut, 3, true, false},
		"nonsense, POST":   {into(call(http.MethodPost)), answer(201, "<html>"), 1, false, true},
		"nonsense, GET":    {into(call(http.MethodGet)), answer(200, "{"), 3, true, false},
		"wrong key":        {call(http.MethodGet), answer(401, ""), 1, false, false},
		"invalid":          {call(http.MethodGet), answer(400, ""), 1, false, false},
		"not implemented":  {call(http.MethodGet), answer(501, ""), 1, false, false},
		"redirect":         {call(http.MethodGet), answer(302, ""), 1, false, false},
		"half a body, GET": {into(call(http.MethodGet)), half, 3, true, false},
		"half, POST":       {into(call(http.MethodPost)), half, 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int32
			c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				if sent.Add(1) < 3 {
					tc.fail(w)
					return
				}
				_, _ = io.WriteString(w, `{}`)
			})
			_, err := c.Do(t.Context(), tc.call)
			if sent.Load() != tc.sent || (err == nil) != tc.ok || cloudapi.MayHaveHappened(err) != tc.uncertain {
				t.Errorf("sent %d times, %v, may have happened: %t; want %d, ok: %t, %t", sent.Load(), err, cloudapi.MayHaveHappened(err), tc.sent, tc.ok, tc.uncertain)
			}
		})
	}
}

func answer(status int, text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

func cut(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func half(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, `{"a":`)
}

func into(call cloudapi.Call) cloudapi.Call {
	call.Into = &map[string]any{}
	return call
}

// TestRetryAfter checks that the client waits as long as the API demands, and gives up where that is beyond its budget.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	after := "1"
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if sent.Add(1) == 1 || r.URL.Path == "/long" {
			if r.URL.Path == "/long" {
				after = "60"
			}
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	begin := time.Now()
	if _, err := c.Do(t.Context(), call(http.MethodPost)); err != nil || time.Since(begin) < time.Second {
		t.Errorf("%v after %v, want success after a second", err, time.Since(begin))
	}
	begin = time.Now()
	before := sent.Load()
	_, err := c.Do(t.Context(), cloudapi.Call{Operation: "list", Method: http.MethodGet, Path: "/long"})
	if sent.Load() != before+1 || time.Since(begin) > 30*time.Second || !sandpit.Retryable(err) || sandpit.RetryAfterOf(err) != time.Minute {
		t.Errorf("%v (retry after %v) after %d requests and %v, want one at once", err, sandpit.RetryAfterOf(err), sent.Load()-before, time.Since(begin))
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ends at once
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	_ = ln.Close()
	_, err = clientOf(t, "http://"+address).Do(t.Context(), call(http.MethodPost))
	if sandpit.CodeOf(err) != sandpit.Unavailable || cloudapi.MayHaveHappened(err) || !strings.Contains(err.Error(), "cannot reach "+address+": ") ||
		sandpit.HintOf(err) == "" {
		t.Errorf("%v (%s)", err, sandpit.CodeOf(err))
	}
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	_, err = clientOf(t, secure.URL).Do(t.Context(), call(http.MethodGet))
	if sandpit.CodeOf(err) != sandpit.Unavailable || !strings.Contains(err.Error(), "cannot be trusted") {
		t.Errorf("unknown certificate: %v", err)
	}
}

// refusing is a transport without a network.
type refusing struct{ asked atomic.Int32 }

// RoundTrip implements http.RoundTripper.
func (r *refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.asked.Add(1)
	return nil, &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}
}

// TestUnreachableSoon tries a host that cannot be reached three times only: another provider may be waiting.
func TestUnreachableSoon(t *testing.T) {
	t.Parallel()
	network := &refusing{}
	c, err := cloudapi.New(cloudapi.Options{Provider: "vendor", Endpoint: "http://vendor.invalid", Transport: network, Backoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	_, err = c.Do(t.Context(), call(http.MethodGet))
	if sandpit.CodeOf(err) != sandpit.Unavailable || network.asked.Load() != 3 {
		t.Errorf("%v after %d attempts, want 3", err, network.asked.Load())
	}
}

// TestBounds checks timeouts, cancellation and large responses.
func TestBounds(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/known": // the client keeps the connection
		case "/big":
			for range 17 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		default:
			<-release
		}
	})
	t.Cleanup(func() { close(release) }) // before the server is closed
	// A request that waits for a connection is not sent: this one has the connection of the request before it.
	if _, err := c.Do(t.Context(), cloudapi.Call{Operation: "get", Method: http.MethodGet, Path: "/known"}); err != nil {
		t.Fatal(err)
	}
	slow := call(http.MethodPost)
	slow.Timeout = 50 * time.Millisecond
	_, err := c.Do(t.Context(), slow)
	if sandpit.CodeOf(err) != sandpit.Timeout || !cloudapi.MayHaveHappened(err) || !strings.Contains(err.Error(), "did not answer within 50ms") {
		t.Errorf("slow: %v (%s)", err, sandpit.CodeOf(err))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, call(http.MethodGet)); sandpit.CodeOf(err) != sandpit.Timeout {
		t.Errorf("given up: %v", err)
	}
	big := cloudapi.Call{Operation: "list", Method: http.MethodPost, Path: "/big", Into: &struct{}{}}
	if _, err := c.Do(t.Context(), big); sandpit.CodeOf(err) != sandpit.Internal || !strings.Contains(err.Error(), "more than 16 MiB") {
		t.Errorf("big: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"", "host", "ftp://host", "http://", "http://me:s3cret@host", "http://host?key=s3cret", "http://host#s3cret"} {
		_, err := cloudapi.New(cloudapi.Options{Provider: "vendor", Endpoint: endpoint})
		if sandpit.CodeOf(err) != sandpit.Invalid || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	_, err := cloudapi.New(cloudapi.Options{Provider: "vendor", Endpoint: "http://host", Header: http.Header{"X-Key": {"s3cret\n"}}})
	if sandpit.CodeOf(err) != sandpit.Invalid || strings.Contains(fmt.Sprint(err), "s3cret") {
		t.Errorf("key with a line feed: %v", err)
	}
}
