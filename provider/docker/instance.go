package docker

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// Instance is one sandbox of a Provider.
type Instance struct {
	b     *sandbox
	guest *envd.Client

	mu         sync.Mutex
	transports map[int]http.RoundTripper
}

var (
	_ sandpit.Instance = (*Instance)(nil)
	_ sandpit.Dialer   = (*Instance)(nil)
	_ sandpit.Claimer  = (*Instance)(nil)
	_ sandpit.Stopper  = (*Instance)(nil)
	_ sandpit.Pauser   = (*Instance)(nil)
	_ sandpit.Statser  = (*Instance)(nil)
)

func newInstance(b *sandbox, token string) *Instance {
	return &Instance{b: b, guest: envd.New(b.monitor.Guest(caller{b}), token), transports: make(map[int]http.RoundTripper)}
}

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.b.id }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte { return handle{i.b.id, i.b.container}.encodeHandle() }

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest { return i.guest }

// HTTP implements sandpit.Instance.
func (i *Instance) HTTP(port int) http.RoundTripper {
	if port == guest.Port {
		return i.b.monitor.Guest(caller{i.b})
	}
	return i.b.monitor.Port(i.portTransport(port))
}

// portTransport returns the transport to a port of a program inside, without timeouts.
func (i *Instance) portTransport(port int) http.RoundTripper {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t := i.transports[port]; t != nil {
		return t
	}
	t := &portTransport{b: i.b, http: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return i.b.dialPort(ctx, port) },
		// The far end is untrusted.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
	}}
	if checkPort(port) == nil { // invalid ports are unbounded
		i.transports[port] = t
	}
	return t
}

// portTransport checks the sandbox's state before it uses a connection.
type portTransport struct {
	b    *sandbox
	http *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *portTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.b.checkUsable(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // it was never read
		}
		return nil, err
	}
	res, err := t.http.RoundTrip(r)
	if err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	return res, nil
}

// Dial implements sandpit.Dialer.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return i.b.dialPort(ctx, port)
}

// Wait implements sandpit.Instance.
//
// Unavailable: the engine does not answer for Options.Patience, so the state is unknown.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) { return i.b.waitForEnd(ctx) }

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	err := i.b.removeContainer(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, t := range i.transports {
		if t, ok := t.(*portTransport); ok {
			t.http.CloseIdleConnections()
		}
	}
	return err
}

// Claim implements sandpit.Claimer.
func (i *Instance) Claim(ctx context.Context, spec sandpit.Spec) error {
	if err := i.claimSpare(ctx, spec.Clone()); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", i.b.id, err)
	}
	return nil
}

func (i *Instance) claimSpare(ctx context.Context, spec sandpit.Spec) error {
	if err := i.b.lockInState(ctx, running); err != nil {
		return err
	}
	defer i.b.unlock()
	rec, err := i.b.p.records.readRecord(i.b.id, i.b.container)
	if err != nil {
		return err
	}
	if !rec.Spec.SameMachine(spec) {
		return sandpit.Errorf(sandpit.Invalid, "cannot change image, mounts, limits or host name of an existing sandbox")
	}
	if err := i.b.p.validateSpec(spec); err != nil {
		return err
	}
	req := initFor(spec, rec.Image)
	req.Token, req.Forget = rand.Text(), true
	rec.Spec, rec.Token = spec, req.Token
	if err := i.b.p.records.writeRecord(rec); err != nil {
		return err
	}
	return i.guest.Init(ctx, req)
}
