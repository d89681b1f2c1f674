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

// DefaultURL is where a server listens when nobody says otherwise.
const DefaultURL = "http://127.0.0.1:8090"

// Options say which server to talk to. The zero value of a field means the default
// stated with it.
type Options struct {
	// URL is the server's address: http://HOST:PORT, https://..., or unix:///PATH of its
	// socket. Default: DefaultURL.
	URL string
	// Key is an API key. Default: none, for a server that asks for none.
	Key string
	// CAFile is a file of certificates in PEM form, one of which must have signed the
	// server's: "sandpit tls ca" prints that of a server's own authority. It is Invalid
	// together with Transport. Default: those that the machine trusts.
	CAFile string
	// Transport carries the requests. Default: one of the client's own. It is Invalid
	// together with a URL of a socket.
	Transport http.RoundTripper
	// Timeout is how long a call may take that only asks for something, with all that
	// it is tried again. Commands, files and the making of sandboxes have none but the
	// context's. Default: 60 s.
	Timeout time.Duration
	// Attempts is how often a call is made that may be sent again, if the server cannot be
	// reached. What a server refuses because it is too busy (Exhausted that is
	// sandpit.Retryable) is always sent again, up to 10 times and for a minute, unless its
	// body is a stream. Retry-After is honoured. Default: 4.
	Attempts int
	// UserAgent names the program. Default: "sandpit".
	UserAgent string
}

// Client talks to one server. All methods may be called concurrently.
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

	base  *url.URL
	o     Options
	http  *http.Client
	close func()
}

// New returns a client. It does not talk to the server yet.
//
// Invalid: the options.
func New(o Options) (*Client, error) {
	o.URL = cmp.Or(o.URL, DefaultURL)
	o.Timeout = cmp.Or(o.Timeout, 60*time.Second)
	o.Attempts = cmp.Or(o.Attempts, 4)
	o.UserAgent = cmp.Or(o.UserAgent, "sandpit")
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the server's address is no URL")
	}
	if strings.ContainsAny(o.Key, "\r\n\x00") {
		return nil, sandpit.Errorf(sandpit.Invalid, "the API key has characters that no key has")
	}
	c := &Client{base: base, o: o, close: func() {}}
	trusted, err := o.trusted()
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
		transport, c.close = t, t.CloseIdleConnections
		c.base = &url.URL{Scheme: "http", Host: "localhost"}
	case (base.Scheme == "http" || base.Scheme == "https") && base.Host != "" && base.User == nil:
		if transport == nil {
			t := newTransport()
			t.TLSClientConfig = trusted
			transport, c.close = t, t.CloseIdleConnections
		}
		c.base = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimRight(base.Path, "/")}
	default:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "there is no server at an address like %.200q", redacted(base)),
			"give http://HOST:PORT, https://HOST:PORT or unix:///PATH; a key goes into SANDPIT_API_KEY")
	}
	c.http = &http.Client{
		Transport:     patient{authorized{transport, o}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.Sandboxes, c.Networks, c.Ports = Sandboxes{c}, Networks{c}, Ports{c}
	c.Snapshots, c.Volumes, c.Templates, c.Builds = Snapshots{c}, Volumes{c}, Templates{c}, Builds{c}
	c.Images, c.Events, c.Queue = Images{c}, Events{c}, Queue{c}
	c.Keys, c.SSHKeys, c.Tokens = Keys{c}, SSHKeys{c}, Tokens{c}
	return c, nil
}

// FromEnv returns a client for the server that the commands of sandpit find, too: the one
// that SANDPIT_URL names, else SANDBOX_HOST and SANDBOX_PORT, else "url" in the
// configuration file; else this user's own server, by its socket or the address at which
// the configuration has it listen. The key is SANDPIT_API_KEY or "api_key" in the
// configuration, and SANDPIT_CA or "ca" is Options.CAFile.
//
// Invalid: the configuration, which is not read if a variable names the server.
func FromEnv() (*Client, error) {
	o := OptionsFromEnv(os.Getenv) //nolint:forbidigo // this package is for other programs, whose environment it is
	if o.URL != "" {
		return New(o)
	}
	cfg, err := config.Load(config.FromProcess())
	if err != nil {
		return nil, err
	}
	return New(Options{URL: cfg.ServerURL(), Key: cfg.APIKey.Reveal(), CAFile: cfg.CA})
}

// OptionsFromEnv reads SANDPIT_URL, SANDBOX_HOST and SANDBOX_PORT, SANDPIT_API_KEY and
// SANDPIT_CA from an environment. Options.URL is "" if no variable names a server.
func OptionsFromEnv(getenv func(name string) string) Options {
	o := Options{URL: getenv("SANDPIT_URL"), Key: getenv("SANDPIT_API_KEY"), CAFile: getenv("SANDPIT_CA")}
	host, port := getenv("SANDBOX_HOST"), getenv("SANDBOX_PORT")
	if o.URL == "" && (host != "" || port != "") {
		o.URL = "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), cmp.Or(port, "8090"))
	}
	return o
}

// URL is where the server is, for people.
func (c *Client) URL() string { return cmp.Or(c.o.URL, DefaultURL) }

// Close gives back idle connections. The client can still be used.
func (c *Client) Close() { c.close() }

// trusted says whose certificates are good; nil for those that the machine trusts.
func (o Options) trusted() (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil
	}
	if o.Transport != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificates to be trusted are for a transport of the client's own")
	}
	text, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificates to be trusted: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, sandpit.Errorf(sandpit.Invalid, "certificates to be trusted: %s has none in PEM form", o.CAFile)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		// Output shall come as it is, and when it is there.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
		ForceAttemptHTTP2:  true,
	}
}

// redacted is the address without a password.
func redacted(u *url.URL) string {
	r := *u
	r.User, r.RawQuery = nil, ""
	return r.String()
}

// authorized shows the key with every request.
type authorized struct {
	rt http.RoundTripper
	o  Options
}

// RoundTrip implements http.RoundTripper.
func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if a.o.Key != "" {
		r.Header.Set("X-Api-Key", a.o.Key)
	}
	r.Header.Set("User-Agent", a.o.UserAgent)
	res, err := a.rt.RoundTrip(r)
	if err == nil {
		res.Body = &body{res.Body, r.Context()}
		return res, nil
	}
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the server at %s cannot be trusted: %w", cmp.Or(a.o.URL, DefaultURL), err),
			"if it has an authority of its own, name its certificate with SANDPIT_CA; \"sandpit tls ca\" prints it where the server runs")
	}
	return nil, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "the server at %s cannot be reached: %w", cmp.Or(a.o.URL, DefaultURL), err),
		fmt.Sprintf("is it running? \"sandpit serve\" starts one; SANDPIT_URL says where it is (now %s)", cmp.Or(a.o.URL, DefaultURL)))
}
