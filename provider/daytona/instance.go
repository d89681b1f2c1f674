package daytona

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// Instance is one sandbox of a Provider.
type Instance struct{ b *sandbox }

var (
	_ sandpit.Instance       = (*Instance)(nil)
	_ sandpit.Dialer         = (*Instance)(nil)
	_ sandpit.Stopper        = (*Instance)(nil)
	_ sandpit.Pauser         = (*Instance)(nil)
	_ sandpit.Suspender      = (*Instance)(nil)
	_ sandpit.Archiver       = (*Instance)(nil)
	_ sandpit.Statser        = (*Instance)(nil)
	_ sandpit.NetworkPolicer = (*Instance)(nil)
	_ sandpit.Renewer        = (*Instance)(nil)
	_ sandpit.StateReader    = (*Instance)(nil)
)

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.b.id }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte { return handle{i.b.id, i.b.ref}.encodeHandle() }

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest {
	if tools := i.b.guestless(); tools != nil {
		return tools
	}
	return i.b.client
}

// Wait implements sandpit.Instance.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) { return i.b.waitForEnd(ctx) }

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	if err := i.b.destroy(ctx); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", i.b.id, err)
	}
	return nil
}

// destroy deletes the sandbox and returns when it is gone.
func (b *sandbox) destroy(ctx context.Context) error {
	if b.currentState() == sandpit.StateDeleted {
		return nil
	}
	if err := b.p.deleteAndWait(ctx, b.id, b.ref); err != nil {
		return err
	}
	b.recordEnd(sandpit.Exit{Reason: "the sandbox was destroyed"})
	return nil
}

// deleteAndWait deletes a sandbox. It repeats the request while another change is in progress. A
// sandbox that is being destroyed counts as deleted: the cloud lists it no more.
func (p *Provider) deleteAndWait(ctx context.Context, id sandpit.ID, ref string) error {
	limited, cancel := context.WithTimeout(ctx, p.o.StartTimeout)
	defer cancel()
	for {
		err := p.control.deleteBox(limited, id, ref)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			return nil
		}
		if err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
			return err
		}
		now, readErr := p.control.getBox(limited, id, ref)
		switch {
		case sandpit.CodeOf(readErr) == sandpit.NotFound, readErr == nil && now.State.isGone():
			return nil
		case readErr != nil:
			return errors.Join(err, readErr)
		}
		select {
		case <-limited.Done():
			return errors.Join(err, context.Cause(limited))
		case <-afterLook():
		}
	}
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return sandpit.Errorf(sandpit.Invalid, "port %d: want 1 to 65535", port)
	}
	return nil
}

// Dial implements sandpit.Dialer. Without a guest, the connection carries HTTP/1 only.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	if err := i.b.checkUsable(ctx); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dial := i.b.tunnel.dial
	if i.b.guestless() != nil {
		dial = i.b.dialRelay
	}
	conn, err := dial(ctx, port)
	if err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return conn, nil
}

// HTTP implements sandpit.Instance.
func (i *Instance) HTTP(port int) http.RoundTripper {
	if i.b.guestless() != nil {
		return previewTransport{i.b, port}
	}
	if port == guestPort {
		return i.b.monitor.Guest(i.b.tunnel)
	}
	return i.b.monitor.Port(&portTransport{i.b, port})
}

// portTransport sends requests to a port of a program inside.
type portTransport struct {
	b    *sandbox
	port int
}

// RoundTrip implements http.RoundTripper.
func (t *portTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	err := checkPort(t.port)
	if err == nil {
		err = t.b.checkUsable(r.Context())
	}
	if err != nil {
		closeBody(r)
		return nil, err
	}
	res, err := t.b.portTransport(t.port).RoundTrip(r)
	if err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	return res, nil
}

// portTransport returns the transport to a port.
func (b *sandbox) portTransport(port int) *http.Transport {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.transports[port]
	if t == nil {
		t = newPortTransport(func(ctx context.Context) (net.Conn, error) { return b.tunnel.dial(ctx, port) })
		b.transports[port] = t
	}
	return t
}

// checkRequest checks a request to a port of a sandbox without a guest.
func (b *sandbox) checkRequest(r *http.Request, port int) error {
	if err := checkPort(port); err != nil {
		return err
	}
	return b.checkUsable(r.Context())
}

// proxyTransport sends requests to a port through the toolbox's proxy.
type proxyTransport struct {
	b    *sandbox
	port int
}

// RoundTrip implements http.RoundTripper. The toolbox keeps some headers for itself; a request with
// one of them is refused.
func (t proxyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	err := t.b.checkRequest(r, t.port)
	for _, name := range []string{"Authorization", "Cookie"} {
		if err == nil && r.Header.Get(name) != "" {
			err = refuseTool("send the header " + name + " to port " + strconv.Itoa(t.port))
		}
	}
	if err != nil {
		closeBody(r)
		return nil, err
	}
	out, err := t.b.newRequest(r.Context(), toolCall{method: r.Method, path: proxyPath(t.port, r.URL.EscapedPath()), body: r.Body})
	if err != nil {
		closeBody(r)
		return nil, err
	}
	out.URL.RawQuery, out.ContentLength = r.URL.RawQuery, r.ContentLength
	maps.Copy(out.Header, r.Header)
	res, err := t.b.p.toolbox.http.RoundTrip(out)
	if err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	if res.StatusCode != http.StatusBadGateway && res.StatusCode != http.StatusGatewayTimeout {
		return res, nil
	}
	_ = res.Body.Close() // was not read
	if err := t.b.checkFresh(r.Context()); err != nil {
		return nil, err
	}
	return nil, noProgram(t.port)
}
