package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// The headers by which a client names a sandbox and a port, and shows its token.
const (
	sandboxHeader = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	trafficHeader = "E2b-Traffic-Access-Token"
)

const (
	// maxProblem bounds an error response of the cloud's proxy, in bytes.
	maxProblem = 64 << 10
	// explainTime bounds the call that explains a broken connection.
	explainTime = 10 * time.Second
)

func newSandboxTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        time.Minute,
		TLSHandshakeTimeout:    15 * time.Second,
		DisableCompression:     true,
	}
}

// link reaches the ports of a sandbox.
type link struct {
	b      *sandbox
	access atomic.Pointer[access] // nil before the sandbox runs
}

// portTransport is a transport to a port of a sandbox.
type portTransport struct {
	b    *sandbox
	port int
	// raw transports do not check the sandbox's state first, for calls that open it.
	raw bool
}

// port returns a transport to a port, as the cloud's proxy serves it.
func (l *link) port(port int) http.RoundTripper { return portTransport{l.b, port, false} }

// rawPort is port without a check of the state.
func (l *link) rawPort(port int) http.RoundTripper { return portTransport{l.b, port, true} }

// checkPort returns Invalid unless port is one.
func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return sandpit.Errorf(sandpit.Invalid, "invalid port %d", port)
	}
	return nil
}

// RoundTrip implements http.RoundTripper.
func (t portTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	err := checkPort(t.port)
	if err == nil && !t.raw {
		err = t.b.checkUsable(ctx)
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // it was never read
		}
		return nil, err
	}
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{}) // the check may have changed the guest's key: the caller sets it again
	}
	sent, err := t.toCloud(r)
	if err != nil {
		return nil, err
	}
	res, err := t.b.p.http.RoundTrip(sent)
	if err != nil {
		return nil, t.b.explainFailure(ctx, err)
	}
	return t.checkResponse(ctx, res)
}

// toCloud returns the request for the cloud's proxy.
func (t portTransport) toCloud(r *http.Request) (*http.Request, error) {
	a := t.b.link.access.Load()
	if a == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s has not been reached yet", t.b.h.ID)
	}
	sent := r.Clone(r.Context())
	target, err := t.b.p.addressOf(t.b.h.Cloud, a.Domain, t.port)
	if err != nil {
		return nil, err
	}
	target.Path, target.RawPath, target.RawQuery = r.URL.Path, r.URL.RawPath, r.URL.RawQuery
	sent.URL, sent.Host, sent.RequestURI = target, target.Host, ""
	if sent.Header == nil {
		sent.Header = make(http.Header)
	}
	sent.Header.Set(sandboxHeader, t.b.h.Cloud)
	sent.Header.Set(portHeader, strconv.Itoa(t.port))
	sent.Header.Del(trafficHeader)
	if a.TrafficToken != "" && t.port != guestPort { // the guest has a token of its own
		sent.Header.Set(trafficHeader, a.TrafficToken)
	}
	return sent, nil
}

// addressOf returns the URL of a port of a sandbox.
func (p *Provider) addressOf(cloudID, domain string, port int) (*url.URL, error) {
	if p.o.SandboxURL != "" {
		u, err := url.Parse(p.o.SandboxURL)
		if err != nil {
			return nil, err // was checked
		}
		return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
	}
	if domain == "" {
		domain = p.o.Domain
	}
	if strings.ContainsAny(domain, "/@?#\\ ") {
		return nil, sandpit.Errorf(sandpit.Internal, "provider e2b: the cloud returned the invalid domain %.100q", domain)
	}
	return &url.URL{Scheme: "https", Host: fmt.Sprintf("%d-%s.%s", port, cloudID, domain)}, nil
}

// proxyProblem is an error of the cloud's proxy about a sandbox or a port.
type proxyProblem struct {
	Sandbox string `json:"sandboxId"`
	Message string `json:"message"`
	Port    int    `json:"port"`
}

// checkResponse converts an error of the cloud's proxy. A response of a program inside is returned as it is.
func (t portTransport) checkResponse(ctx context.Context, res *http.Response) (*http.Response, error) {
	if res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusForbidden {
		data, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		var problem proxyProblem
		if err == nil && json.Unmarshal(data, &problem) == nil && problem.Sandbox != "" {
			_ = res.Body.Close() // was read
			return nil, t.problemError(ctx, res.StatusCode, problem)
		}
		res.Body = readCloser{io.MultiReader(bytes.NewReader(data), res.Body), res.Body}
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res, nil
	}
	res.Body = &bodyReader{ReadCloser: res.Body, ctx: ctx, b: t.b}
	return res, nil
}

// problemError returns the error for a problem of the cloud's proxy.
func (t portTransport) problemError(ctx context.Context, status int, problem proxyProblem) error {
	switch {
	case status == http.StatusForbidden:
		return sandpit.Errorf(sandpit.Unauthenticated, "sandbox %s: the cloud rejects the token for port %d", t.b.h.ID, t.port)
	case problem.Port != 0:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s: nothing listens on port %d", t.b.h.ID, t.port)
	}
	return t.b.explainFailure(ctx, errors.New("the cloud cannot find the sandbox"))
}

// explainFailure returns the error for a failed connection: the sandbox may have ended, or may be paused.
func (b *sandbox) explainFailure(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return cause // a parent of ctx has ended, and ctx is about to
	}
	if b.isEnded() {
		return b.goneError()
	}
	limited, cancel := context.WithTimeout(ctx, explainTime)
	defer cancel()
	state, err := b.readState(limited)
	switch {
	case b.isEnded():
		return b.goneError()
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s cannot be reached: %s; and %w", b.h.ID, causeOf(cause), err)
	}
	if err := b.stateError(state); err != nil {
		return err
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection to sandbox %s failed: %s", b.h.ID, causeOf(cause))
}

// causeOf returns the text of a failed request without its URL.
func causeOf(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}

type readCloser struct {
	io.Reader
	io.Closer
}

// bodyReader explains why a response ended early.
type bodyReader struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // the context of the request
	b   *sandbox
}

// Read implements io.Reader.
func (r *bodyReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.b.explainFailure(r.ctx, err)
	}
	return n, err
}

// probeGuest implements liveness.Probe.
func (b *sandbox) probeGuest(ctx context.Context, asked func()) error {
	if b.isEnded() {
		return b.goneError()
	}
	if state := b.currentState(); state != sandpit.StateRunning {
		return b.stateError(state)
	}
	asked()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := b.link.rawPort(b.guest.port()).RoundTrip(r)
	if err == nil {
		return res.Body.Close()
	}
	if !errors.Is(context.Cause(ctx), liveness.ErrSilent) {
		return err
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTime)
	defer cancel()
	state, err := b.readState(limited)
	if err == nil {
		err = b.stateError(state)
	}
	if err != nil {
		return err
	}
	return liveness.ErrSilent
}
