package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// client sends requests to registries for one pull.
type client struct {
	times       timeouts
	insecure    []string
	http        *http.Client
	transport   *http.Transport
	credentials CredentialFunc
}

const maxRedirects = 5

// newClient returns a client for an owner. The guard does not apply to the administrator's.
func (pl *puller) newClient(owner string) *client {
	l := &guardedDialer{timeout: pl.timeouts.connect}
	if owner != shared && pl.o.Sharing != nil {
		l.Guard = pl.o.Sharing.Guard
	}
	c := &client{times: pl.timeouts, insecure: pl.o.Insecure, credentials: pl.o.Credentials}
	c.transport = &http.Transport{
		Proxy:                  l.proxyFor,
		DialContext:            l.dialGuarded,
		TLSHandshakeTimeout:    pl.timeouts.connect,
		ResponseHeaderTimeout:  pl.timeouts.idle,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    pullers,
		DisableCompression:     true, // digests are computed from the received bytes
		ForceAttemptHTTP2:      true,
	}
	c.http = &http.Client{Transport: c, CheckRedirect: c.checkRedirect}
	return c
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// RoundTrip rejects unencrypted requests to hosts that are not allowed for that, also after
// redirects.
func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (r.URL.Scheme != "http" || !c.canBePlain(r.URL.Host)) {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "%s requires an unencrypted connection", quoteName(r.URL.Host)),
			"to allow that, add it to image.insecure")
	}
	r.Header.Set("User-Agent", "sandpit")
	return c.transport.RoundTrip(r)
}

func (c *client) canBePlain(host string) bool {
	return slices.Contains(c.insecure, host) || isLoopback(host)
}

func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *client) checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return sandpit.Errorf(sandpit.Unavailable, "too many redirects")
	}
	if r.URL.Host != via[0].URL.Host && !c.canBePlain(via[0].URL.Host) && isInside(r.URL) {
		return sandpit.Errorf(sandpit.PermissionDenied, "redirect to %s, an address of this machine or network", quoteName(r.URL.Host))
	}
	if r.URL.Host == via[0].URL.Host {
		return nil
	}
	if r.GetBody != nil { // only token requests have one
		return sandpit.Errorf(sandpit.PermissionDenied, "redirect of a login to %s", quoteName(r.URL.Host))
	}
	r.Header.Del("Authorization")
	return nil
}

// endpoint is one repository in one registry or mirror.
type endpoint struct {
	*client
	registry   string // for example docker.io
	host       string
	repository string

	mu     sync.Mutex
	scheme string
	auth   string // the header
}

// attemptError is the error of one attempt.
type attemptError struct {
	err   error
	retry bool          // whether another attempt may succeed
	wait  time.Duration // delay before the next attempt
}

func (f *attemptError) Error() string { return f.err.Error() }
func (f *attemptError) Unwrap() error { return f.err }

// getOK requests a path below the repository. The response has one of the wanted status codes;
// the caller closes it.
func (e *endpoint) getOK(ctx context.Context, path string, header http.Header, wanted ...int) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		resp, auth, err := e.sendRequest(ctx, path, header)
		if err != nil {
			return nil, e.networkError(ctx, err)
		}
		if slices.Contains(wanted, resp.StatusCode) {
			return resp, nil
		}
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // only for the message
		_ = resp.Body.Close()                                    // only read
		if resp.StatusCode != http.StatusUnauthorized || attempt > 0 {
			return nil, e.statusError(resp, body)
		}
		if err := e.authenticate(ctx, resp, auth); err != nil {
			return nil, err
		}
	}
}

// sendRequest sends one request. It also returns the authorization that it used.
func (e *endpoint) sendRequest(ctx context.Context, path string, header http.Header) (*http.Response, string, error) {
	e.mu.Lock()
	scheme, auth := e.scheme, e.auth
	e.mu.Unlock()
	u := url.URL{Scheme: scheme, Host: e.host, Path: "/v2/" + e.repository + "/" + path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, "", err
	}
	maps.Copy(req.Header, header)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	resp, err := e.http.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) && e.canBePlain(e.host) && scheme == "https" {
		e.mu.Lock()
		e.scheme = "http"
		e.mu.Unlock()
		return e.sendRequest(ctx, path, header)
	}
	return resp, auth, err
}

// networkError adds a code to a network error. It omits the URLs in errors of the standard
// library, which may contain secrets after a redirect.
func (e *endpoint) networkError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if ours, ok := errors.AsType[*sandpit.Error](err); ok {
		return fmt.Errorf("registry %s: %w", e.registry, ours)
	}
	text := networkText(err)
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		return &attemptError{retry: true, err: sandpit.WithHint(
			sandpit.Errorf(sandpit.Timeout, "registry %s timed out: %s", e.registry, text), offlineHint)}
	}
	final := errors.Is(err, http.ErrSchemeMismatch)
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		final = dns.IsNotFound
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		final = true
	}
	return &attemptError{retry: !final, err: sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "registry %s cannot be reached: %s", e.registry, text), offlineHint)}
}

const offlineHint = "without a registry: leave the image out for the programs of this machine (sandpit run -- COMMAND); or build one of Debian's packages " +
	"(sandpit template build builtin:base, or from = \"apt:bookworm\" in a sandpit.toml); or bring the image as a file (docker save -o x.tar IMAGE) and: " +
	"sandpit image import x.tar"

// networkText returns the text of an error without its URL.
func networkText(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return strings.Trim(quoteName(err.Error()), `"`)
}

// statusError returns the error for a response with an unwanted status.
func (e *endpoint) statusError(resp *http.Response, body []byte) error {
	said := registryMessage(body)
	login := "docker login " + e.registry
	if e.registry == hub {
		login = "docker login"
	}
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound:
		return sandpit.Errorf(sandpit.NotFound, "registry %s has no such image or tag%s", e.registry, said)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "registry %s denies access: no such image, or a login is required%s", e.registry, said),
			"check the name; if it is correct, log in: "+login)
	case code == http.StatusTooManyRequests:
		return &attemptError{retry: true, wait: retryAfter(resp.Header), err: sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "registry %s: too many requests%s", e.registry, said),
			"wait, or log in: "+login)}
	case code >= 500 || code == http.StatusRequestTimeout:
		return &attemptError{retry: true, wait: retryAfter(resp.Header), err: sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "registry %s failed with status %d%s", e.registry, code, said), "try again later")}
	default:
		return sandpit.Errorf(sandpit.Unavailable, "registry %s: unexpected status %d%s", e.registry, code, said)
	}
}

// retry calls f until it succeeds, returns a permanent error, or has failed too often in a row.
// more reports whether an attempt made progress.
func (c *client) retry(ctx context.Context, f func() (more bool, err error)) error {
	pause := c.times.pause
	for left := c.times.tries; ; {
		more, err := f()
		fail, ok := errors.AsType[*attemptError](err)
		if !ok {
			return err
		}
		if more {
			left, pause = c.times.tries, c.times.pause
		}
		if left--; !fail.retry || left <= 0 {
			return fail.err
		}
		wait := min(max(pause, fail.wait), c.times.longest)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
			pause *= 2
		}
	}
}
