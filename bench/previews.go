package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// pagePackage is the program behind the previews.
const pagePackage = "github.com/sandpit-dev/sandpit/bench/testdata/page"

const (
	pageInside   = "/tmp/page"
	pagePort     = 8000
	pageRequests = 20 // one sample is their median
	pageSockets  = 1000
	pageIdle     = 4096
	pageMessages = 5
)

// viewer requests the page in one way.
type viewer struct {
	client *http.Client
	target string
	header http.Header
}

// get requests the page once, on a kept connection.
func (v viewer) get(ctx context.Context) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.target, nil)
	if err != nil {
		return 0, err
	}
	req.Header = v.header.Clone()
	return timed(func() error {
		resp, err := v.client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && string(body) != "a page" {
			err = fmt.Errorf("%s: %s: %s", v.target, resp.Status, lastWords(string(body)))
		}
		return err
	})
}

// sample returns the median of several requests.
func (v viewer) sample(ctx context.Context) ([]float64, error) {
	var took []float64
	for range pageRequests {
		d, err := v.get(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, ms(d))
	}
	return []float64{summarize(took).P50}, nil
}

// await waits until the page is served.
func (v viewer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := v.get(ctx)
		if err == nil {
			return nil
		}
		if pauseFor(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("wait for the page: %w", err)
		}
	}
}

// previews measures what a preview adds to a direct request into a sandbox, and a server with many
// viewers and many idle connections.
func (k *kit) previews(ctx context.Context, p *gvisor.Provider, s *served) (err error) {
	if !k.o.wants(namePreviews) {
		return nil
	}
	program := filepath.Join(k.dir, "page")
	if err := k.buildStatic(ctx, pagePackage, program); err != nil {
		return err
	}
	near, err := newSandpit(bySandpit, p, k.root.path).start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroyed(ctx, near)) }()
	far, err := s.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroyed(ctx, far)) }()
	straight, ok := near.(*sandpitBox)
	if !ok {
		return fmt.Errorf("a box of another kind: %T", near)
	}
	direct := viewer{client: &http.Client{Transport: straight.inst.HTTP(pagePort)}, target: "http://page/"}
	preview, err := s.viewer(ctx, far)
	if err != nil {
		return err
	}
	defer preview.client.CloseIdleConnections()
	if err := errors.Join(show(ctx, near, program, direct), show(ctx, far, program, preview)); err != nil {
		return err
	}
	series := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricPage, unitMS}}}
	series.add(bySandpit, func() ([]float64, error) { return direct.sample(ctx) })
	series.add(bySandpitHTTP, func() ([]float64, error) { return preview.sample(ctx) })
	if err := series.run(ctx); err != nil {
		return err
	}
	return errors.Join(k.sockets(ctx, preview), k.idlers(ctx, s, preview))
}

// show starts the page in a box.
func show(ctx context.Context, b box, program string, v viewer) error {
	if err := b.CopyIn(ctx, program, pageInside); err != nil {
		return err
	}
	if err := b.Run(ctx, "sh", "-c", fmt.Sprintf("%s 127.0.0.1:%d >/dev/null 2>&1 &", pageInside, pagePort)); err != nil {
		return err
	}
	return v.await(ctx)
}

func (k *kit) buildStatic(ctx context.Context, pkg, target string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", target, pkg)
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if err := run(build); err != nil {
		return fmt.Errorf("build %s: %w", filepath.Base(pkg), err)
	}
	return nil
}

func destroyed(ctx context.Context, b box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	return b.Destroy(ctx)
}

// viewer returns a client with a preview URL.
func (s *served) viewer(ctx context.Context, b *servedBox) (viewer, error) {
	u, err := s.client.Ports.URL(ctx, b.box.ID, pagePort, 0)
	if err != nil {
		return viewer{}, withHint(err)
	}
	target, err := url.Parse(u.URL)
	if err != nil {
		return viewer{}, err
	}
	target.RawQuery = ""
	address := net.JoinHostPort("127.0.0.1", target.Port())
	return viewer{
		client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 1,
			// Not every machine resolves names below localhost.
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
		}},
		target: target.String(), header: http.Header{"Sandpit-Preview-Token": {u.Token}},
	}, nil
}

// sockets opens many WebSockets, and then has each repeat messages, all at the same time.
func (k *kit) sockets(ctx context.Context, v viewer) error {
	number := pageSockets
	if k.o.quick {
		number = 10
	}
	k.note("%d WebSockets", number)
	conns := make([]*websocket.Conn, number)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.CloseNow() // fails only if it is closed already
			}
		}
	}()
	opened, errs := inParallel(number, 50, func(i int) (err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		conns[i], _, err = websocket.Dial(ctx, v.target+"ws", &websocket.DialOptions{HTTPClient: v.client, HTTPHeader: v.header}) //nolint:bodyclose // the connection has it
		return err
	})
	var took []float64
	for range pageMessages {
		times, failed := inParallel(number, number, func(i int) error {
			if conns[i] == nil {
				return nil // reported already
			}
			return repeat(ctx, conns[i], fmt.Appendf(nil, "message of %d", i))
		})
		took, errs = append(took, times...), append(errs, failed...)
	}
	k.report.add(
		result{Metric: fmt.Sprintf("open one of %d WebSockets, 50 at a time", number), Contestant: bySandpitHTTP, Unit: unitMS, stats: summarize(opened)},
		result{Metric: fmt.Sprintf(metricEcho, number), Contestant: bySandpitHTTP, Unit: unitMS, stats: summarize(took)},
		single(fmt.Sprintf(metricSilent, number), bySandpitHTTP, unitNone, float64(len(errs))),
	)
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d WebSockets: %w", len(errs), number, errs[0])
	}
	return nil
}

// repeat sends a message to a WebSocket, which repeats it.
func repeat(ctx context.Context, c *websocket.Conn, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, text); err != nil {
		return err
	}
	if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, text) {
		return fmt.Errorf("%q came back: %w", got, err)
	}
	return nil
}

// inParallel calls a function number times, several at a time, and returns how many ms each
// successful call took.
func inParallel(number, atATime int, do func(i int) error) (took []float64, errs []error) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	turns := make(chan struct{}, atATime)
	for i := range number {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			d, err := timed(func() error { return do(i) })
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			took = append(took, ms(d))
		})
	}
	group.Wait()
	return took, errs
}

// idlers holds connections to the server with half a request on each. Meanwhile it measures requests
// for the page.
func (k *kit) idlers(ctx context.Context, s *served, v viewer) error {
	number := pageIdle
	if k.o.quick {
		number = 32
	}
	k.note("%d idle connections", number)
	target, err := url.Parse(v.target)
	if err != nil {
		return err
	}
	status := fmt.Sprintf("/proc/%d/status", s.process.Process.Pid)
	before, err := kilobytes(status, "VmRSS")
	if err != nil {
		return err
	}
	conns := make([]net.Conn, number)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	_, errs := inParallel(number, 50, func(i int) (err error) {
		if conns[i], err = new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", target.Port())); err != nil {
			return err
		}
		_, err = fmt.Fprintf(conns[i], "GET / HTTP/1.1\r\nHost: %s\r\nX-Slow: ", target.Host)
		return err
	})
	if len(errs) > 0 {
		return fmt.Errorf("hold %d connections: %w", number, errs[0])
	}
	held := series{kit: k, n: k.o.samples(10), metrics: []metric{{fmt.Sprintf(metricHeld, number), unitMS}}}
	held.add(bySandpitHTTP, func() ([]float64, error) { return v.sample(ctx) })
	if err := held.run(ctx); err != nil {
		return err
	}
	after, err := kilobytes(status, "VmRSS")
	if err != nil {
		return err
	}
	k.report.add(single(fmt.Sprintf("memory of a server for %d idle connections", number), bySandpitHTTP, unitMB, float64(after-before)/mega))
	return nil
}
