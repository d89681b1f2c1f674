package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// DefaultURL is the address of the server if none is configured.
const DefaultURL = "http://127.0.0.1:8090"

// Options configure a Client. The zero value of a field means its default.
type Options struct {
	// URL is the server's address: http://HOST:PORT, https://HOST:PORT or unix:///PATH of its
	// socket. Default: DefaultURL.
	URL string
	// Key is an API key. Default: none, for a server that requires none.
	Key string
	// CAFile is a PEM file of certificates, one of which must have signed the server's: "sandpit tls
	// ca" prints that of a server's own authority. It is Invalid together with Transport. Default:
	// the certificates that the machine trusts.
	CAFile string
	// Transport carries the requests. It is Invalid together with the URL of a socket. Default: a
	// transport of the client's own.
	Transport http.RoundTripper
	// Timeout bounds calls that start no long operation, including their retries. Commands, file
	// transfers and the creation of sandboxes are bounded by the context only. Default: 60 s.
	Timeout time.Duration
	// Attempts is how often a request that may be sent again is sent, if the server cannot be
	// reached. A request that the server refuses because it is too busy (Exhausted, and
	// sandpit.Retryable) is always sent again, up to 10 times and for a minute, unless its body is a
	// stream. Retry-After is honored. Default: 4.
	Attempts int
	// UserAgent is the name of the program. Default: "sandpit".
	UserAgent string
}

// Client talks to one server. Each field has the calls on one kind of resource. All methods may
// be called concurrently.
type Client struct {
	Sandboxes Sandboxes
	Networks  Networks
	Ports     Ports
	Snapshots Snapshots
	Volumes   Volumes
	Templates Templates
	Builds    Builds
	Images    Images
	Events    Events
	Queue     Queue
	Keys      Keys
	SSHKeys   SSHKeys
	Tokens    Tokens

	base      *url.URL
	o         Options
	http      *http.Client
	closeIdle func()
}

// New returns a client. It opens no connection.
//
// Invalid: an option.
func New(o Options) (*Client, error) {
	o.URL = cmp.Or(o.URL, DefaultURL)
	o.Timeout = cmp.Or(o.Timeout, 60*time.Second)
	o.Attempts = cmp.Or(o.Attempts, 4)
	o.UserAgent = cmp.Or(o.UserAgent, "sandpit")
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the server's address is not a valid URL")
	}
	if strings.ContainsAny(o.Key, "\r\n\x00") {
		return nil, sandpit.Errorf(sandpit.Invalid, "the API key contains a line break or a zero byte")
	}
	c := &Client{base: base, o: o, closeIdle: func() {}}
	trusted, err := o.readTrustedCerts()
	if err != nil {
		return nil, err
	}
	transport := o.Transport
	switch {
	case base.Scheme == "unix" && transport == nil && strings.HasPrefix(base.Path, "/"):
		t := newTransport()
		socket := base.Path
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		t.Proxy = nil
		transport, c.closeIdle = t, t.CloseIdleConnections
		c.base = &url.URL{Scheme: "http", Host: "localhost"}
	case (base.Scheme == "http" || base.Scheme == "https") && base.Host != "" && base.User == nil:
		if transport == nil {
			t := newTransport()
			t.TLSClientConfig = trusted
			transport, c.closeIdle = t, t.CloseIdleConnections
		}
		c.base = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimRight(base.Path, "/")}
	default:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "invalid server address %.200q", redactURL(base)),
			"use http://HOST:PORT, https://HOST:PORT or unix:///PATH, and SANDPIT_API_KEY for the key")
	}
	c.http = &http.Client{
		Transport:     retryTransport{authTransport{transport, o}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.Sandboxes, c.Networks, c.Ports = Sandboxes{c}, Networks{c}, Ports{c}
	c.Snapshots, c.Volumes, c.Templates, c.Builds = Snapshots{c}, Volumes{c}, Templates{c}, Builds{c}
	c.Images, c.Events, c.Queue = Images{c}, Events{c}, Queue{c}
	c.Keys, c.SSHKeys, c.Tokens = Keys{c}, SSHKeys{c}, Tokens{c}
	return c, nil
}

// FromEnv returns a client for the server that the sandpit commands use: the address is
// SANDPIT_URL, else SANDBOX_HOST and SANDBOX_PORT, else "url" in the configuration file; without
// any, it is the user's own server, by its socket or by the address at which the configuration
// lets it listen. The key is SANDPIT_API_KEY or "api_key" in the configuration, and SANDPIT_CA or
// "ca" is Options.CAFile.
//
// Invalid: the configuration, which is not read if a variable names the server.
func FromEnv() (*Client, error) {
	o := OptionsFromEnv(os.Getenv) //nolint:forbidigo // the environment of the program that uses this package
	if o.URL != "" {
		return New(o)
	}
	cfg, err := config.Load(config.FromProcess())
	if err != nil {
		return nil, err
	}
	return New(Options{URL: cfg.ServerURL(), Key: cfg.APIKey.Reveal(), CAFile: cfg.CA})
}

// OptionsFromEnv reads SANDPIT_URL, SANDBOX_HOST and SANDBOX_PORT, SANDPIT_API_KEY and SANDPIT_CA
// from an environment. Options.URL is "" if no variable names a server.
func OptionsFromEnv(getenv func(name string) string) Options {
	o := Options{URL: getenv("SANDPIT_URL"), Key: getenv("SANDPIT_API_KEY"), CAFile: getenv("SANDPIT_CA")}
	host, port := getenv("SANDBOX_HOST"), getenv("SANDBOX_PORT")
	if o.URL == "" && (host != "" || port != "") {
		o.URL = "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), cmp.Or(port, "8090"))
	}
	return o
}

// URL returns the address of the server, for messages.
func (c *Client) URL() string { return cmp.Or(c.o.URL, DefaultURL) }

// Close closes idle connections. The client remains usable.
func (c *Client) Close() { c.closeIdle() }

// readTrustedCerts returns the TLS configuration with the certificates of CAFile; nil means the
// certificates that the machine trusts.
func (o Options) readTrustedCerts() (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil
	}
	if o.Transport != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "CAFile cannot be combined with a Transport")
	}
	text, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "read the trusted certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, sandpit.Errorf(sandpit.Invalid, "read the trusted certificates: %s contains no PEM certificate", o.CAFile)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// newTransport returns the client's own transport. Compression is off, so that output arrives
// unchanged and without delay.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
		ForceAttemptHTTP2:      true,
	}
}

// redactURL returns an address without user, password and query.
func redactURL(u *url.URL) string {
	r := *u
	r.User, r.RawQuery = nil, ""
	return r.String()
}

// authTransport adds the API key to every request and explains failed connections.
type authTransport struct {
	rt http.RoundTripper
	o  Options
}

// RoundTrip implements http.RoundTripper.
func (a authTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if a.o.Key != "" {
		r.Header.Set("X-Api-Key", a.o.Key)
	}
	r.Header.Set("User-Agent", a.o.UserAgent)
	res, err := a.rt.RoundTrip(r)
	if err == nil {
		res.Body = &responseBody{res.Body, r.Context()}
		return res, nil
	}
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the certificate of the server at %s is not trusted: %w", cmp.Or(a.o.URL, DefaultURL), err),
			"if the server has its own certificate authority, set SANDPIT_CA to its certificate; \"sandpit tls ca\" prints it on the server's machine")
	}
	return nil, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "the server at %s cannot be reached: %w", cmp.Or(a.o.URL, DefaultURL), err),
		fmt.Sprintf("check that it is running (\"sandpit serve\" starts one) and that SANDPIT_URL is its address (now %s)", cmp.Or(a.o.URL, DefaultURL)))
}
