package e2b

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// Instance is one sandbox of a Provider.
type Instance struct {
	b *sandbox

	mu         sync.Mutex
	transports map[int]*http.Transport // through sandpit's guest
}

var (
	_ sandpit.Instance       = (*Instance)(nil)
	_ sandpit.Dialer         = (*Instance)(nil)
	_ sandpit.Stopper        = (*Instance)(nil)
	_ sandpit.Pauser         = (*Instance)(nil)
	_ sandpit.Suspender      = (*Instance)(nil)
	_ sandpit.Statser        = (*Instance)(nil)
	_ sandpit.NetworkPolicer = (*Instance)(nil)
	_ sandpit.Renewer        = (*Instance)(nil)
	_ sandpit.StateReader    = (*Instance)(nil)
)

func newInstance(b *sandbox) *Instance {
	return &Instance{b: b, transports: make(map[int]*http.Transport)}
}

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.b.h.ID }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte { return i.b.h.encode() }

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest { return i.b.guest }

// HTTP implements sandpit.Instance. Requests go through sandpit's guest if the sandbox has it, so that programs that
// listen on the loopback interface are reached and receive the caller's host. Otherwise they go through the cloud's proxy.
func (i *Instance) HTTP(port int) http.RoundTripper { return i.b.monitor.Port(portRoute{i, port}) }

// portRoute chooses the way to a port when a request is sent: the guest of a paused sandbox is not known before.
type portRoute struct {
	i    *Instance
	port int
}

// RoundTrip implements http.RoundTripper.
func (t portRoute) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, b := r.Context(), t.i.b
	err := checkPort(t.port)
	if err == nil {
		err = b.checkUsable(ctx)
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // it was never read
		}
		return nil, err
	}
	through := t.i.portTransport(t.port)
	if through == nil {
		return b.link.rawPort(t.port).RoundTrip(r)
	}
	res, err := through.RoundTrip(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if sandpit.CodeOf(err) != sandpit.Internal { // from dialing
			return nil, err
		}
		return nil, b.explainFailure(ctx, err)
	}
	return res, nil
}

// portTransport returns the transport through sandpit's guest, or nil if the sandbox does not have that.
func (i *Instance) portTransport(port int) *http.Transport {
	dialer, ok := i.b.guest.dialer()
	if !ok || port == guestPort {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	t := i.transports[port]
	if t == nil {
		t = dialer.Transport(port)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return i.Dial(ctx, port) }
		i.transports[port] = t
	}
	return t
}

// Dial implements sandpit.Dialer. Unsupported: the sandbox does not have sandpit's guest.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := i.b.checkUsable(ctx); err != nil {
		return nil, err
	}
	dialer, ok := i.b.guest.dialer()
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "connect to port %d: E2B's guest passes HTTP requests only", port)
	}
	conn, err := dialer.Dial(ctx, port)
	if err != nil && sandpit.CodeOf(err) == sandpit.Internal {
		err = i.b.explainFailure(ctx, err)
	}
	return conn, err
}

// Wait implements sandpit.Instance. It returns also when the cloud has paused the sandbox on its own.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) { return i.b.p.watch.wait(ctx, i.b) }

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	if i.b.isEnded() {
		return nil
	}
	if err := i.b.p.api.deleteSandbox(ctx, i.b.h.ID, i.b.h.Cloud); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", i.b.h.ID, err)
	}
	i.b.end(sandpit.Exit{Reason: "it was destroyed"})
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, t := range i.transports {
		t.CloseIdleConnections()
	}
	return nil
}
