// Package faultproxy is an HTTP proxy for tests that does to requests what an unreliable network and an overloaded server
// do: it delays them, cuts connections, sends requests twice, and answers errors and nonsense. A seed decides.
package faultproxy

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Fault is what the proxy does to a request.
type Fault string

// The faults.
const (
	None      Fault = "none"
	Delay     Fault = "delay"      // the request waits
	CutBefore Fault = "cut before" // the connection is closed and the server receives nothing
	CutAfter  Fault = "cut after"  // the server carries out the request, and the response is lost
	CutWithin Fault = "cut within" // half of the response arrives
	Duplicate Fault = "duplicate"  // the server receives the request twice
	TooMany   Fault = "429"        // with Retry-After; the server receives nothing
	Broken    Fault = "500"        // the server receives nothing
	Late      Fault = "500 after"  // the server carries out the request, and the response is an error
	Nonsense  Fault = "nonsense"   // the server carries out the request, and the response is not JSON
)

// Faults returns all faults but None.
func Faults() []Fault {
	return []Fault{Delay, CutBefore, CutAfter, CutWithin, Duplicate, TooMany, Broken, Late, Nonsense}
}

// Options are the options of a Proxy.
type Options struct {
	// Target is the URL of the server.
	Target string
	// Seed decides which requests have which faults, in the order in which they arrive.
	Seed uint64
	// Share is the share of requests with a fault: 0.3 is three of ten.
	Share float64
	// MaxDelay bounds delays. Default: 300 ms.
	MaxDelay time.Duration
	// Only selects the requests that may have a fault. Default: all.
	Only func(*http.Request) bool
	// Faults are the faults of a request. Default: all.
	Faults func(*http.Request) []Fault
}

// maxBody bounds the body of a request with a fault, in bytes. A larger one has none.
const maxBody = 1 << 20

// Proxy is a running proxy.
type Proxy struct {
	// URL is its address.
	URL string

	o      Options
	server *httptest.Server
	plain  *httputil.ReverseProxy
	client *http.Transport
	target *url.URL

	mu    sync.Mutex
	rng   *rand.Rand
	on    bool
	count map[Fault]int
}

// Start starts a proxy, and stops it when the test ends.
func Start(tb testing.TB, o Options) *Proxy {
	tb.Helper()
	target, err := url.Parse(o.Target)
	if err != nil {
		tb.Fatal(err)
	}
	if o.MaxDelay == 0 {
		o.MaxDelay = 300 * time.Millisecond
	}
	p := &Proxy{
		o: o, target: target, client: &http.Transport{}, on: true, count: make(map[Fault]int), plain: &httputil.ReverseProxy{FlushInterval: -1},
		rng: rand.New(rand.NewPCG(o.Seed, 1)), //nolint:gosec // a seed must repeat its numbers
	}
	p.plain.Rewrite = func(r *httputil.ProxyRequest) { r.SetURL(target) }
	p.plain.Transport = p.client
	p.plain.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // failed copies are the purpose
	p.server = httptest.NewServer(p)
	tb.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
		p.client.CloseIdleConnections()
	})
	p.URL = p.server.URL
	return p
}

// Heal ends all faults of later requests.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = false
}

// CutAll closes all connections of clients.
func (p *Proxy) CutAll() { p.server.CloseClientConnections() }

// Counts returns how many requests had each fault.
func (p *Proxy) Counts() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.count)
}

// choose returns the fault of the next request, and a delay.
func (p *Proxy) choose(r *http.Request) (Fault, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := None
	if p.on && (p.o.Only == nil || p.o.Only(r)) && p.rng.Float64() < p.o.Share {
		list := Faults()
		if p.o.Faults != nil {
			list = p.o.Faults(r)
		}
		f = list[p.rng.IntN(len(list))]
	}
	p.count[f]++
	return f, time.Duration(p.rng.Float64() * float64(p.o.MaxDelay))
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault, delay := p.choose(r)
	if r.ContentLength > maxBody || r.Header.Get("Upgrade") != "" {
		fault = None
	}
	switch fault {
	case Delay:
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
	case CutBefore:
		panic(http.ErrAbortHandler) // closes the connection
	case TooMany:
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusTooManyRequests, "too many requests")
		return
	case Broken:
		writeProblem(w, http.StatusInternalServerError, "the server is broken")
		return
	case CutAfter, CutWithin, Duplicate, Late, Nonsense:
		p.serveFault(w, r, fault)
		return
	case None:
	}
	// Without it, the server stops reading a request whose response has begun, and the proxy breaks the response.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		panic(err) // a server of Go can
	}
	p.plain.ServeHTTP(w, r)
}

// serveFault serves a request that the server carries out.
func (p *Proxy) serveFault(w http.ResponseWriter, r *http.Request, fault Fault) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return // the client is gone
	}
	res, data, err := p.forward(r, body) //nolint:bodyclose // forward closes it
	if err == nil && fault == Duplicate {
		res, data, err = p.forward(r, body) //nolint:bodyclose // forward closes it
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	switch fault {
	case CutAfter:
		panic(http.ErrAbortHandler)
	case Late:
		writeProblem(w, http.StatusInternalServerError, "the server broke")
		return
	case Nonsense:
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write([]byte("<html>\x00\xff nonsense")) // the client may be gone
		return
	default:
	}
	maps.Copy(w.Header(), res.Header)
	w.WriteHeader(res.StatusCode)
	if fault == CutWithin {
		_, _ = w.Write(data[:len(data)/2]) //nolint:gosec // no browser; the connection is closed anyway
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(data) //nolint:gosec // no browser; the client may be gone
}

// forward sends a request to the server, whose response must end by itself.
func (p *Proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = p.target.Scheme, p.target.Host, p.target.Host, ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := p.client.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 16*maxBody))
	return res, data, err
}

func writeProblem(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"message":"` + text + `"}`)) // the client may be gone
}
