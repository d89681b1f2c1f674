package e2b

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// Provider is a sandpit.Provider.
type Provider struct {
	o    Options
	api  *api
	http http.RoundTripper // to sandboxes
	own  *http.Transport   // nil if Options has the transport

	ctx    context.Context //nolint:containedctx // the provider's own life, for its goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	watch  *watcher

	records snapshotRecords

	mu       sync.Mutex
	closed   bool
	creating map[sandpit.ID]bool     // IDs of sandboxes that are being created
	discards map[string]bool         // attempts and cloud's IDs of sandboxes that are to be deleted
	boxes    map[string]*sandboxInfo // by the cloud's ID
	ended    map[string]bool         // attempts whose sandbox has ended: another sandbox of theirs is a twin
}

// sandboxInfo is what the provider knows about a sandbox and the cloud does not return.
type sandboxInfo struct {
	network   *sandpit.NetworkPolicy // the policy that replaced that of the creation
	filesOnly bool                   // it was paused without its memory: stopped
	attempt   string                 // the attempt that created it; "" if the provider does not use it
}

var (
	_ sandpit.Provider      = (*Provider)(nil)
	_ sandpit.AccountReader = (*Provider)(nil)
)

// New returns a provider. It makes no call.
//
// Unauthenticated: there is no key. Invalid: an option cannot be used.
func New(o Options) (*Provider, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	client, err := cloudapi.New(cloudapi.Options{
		Provider: Name, Vendor: "E2B", Endpoint: o.APIURL, Header: http.Header{"X-Api-Key": {o.Key}}, Timeout: o.CallTimeout, Transport: o.Transport,
		KeyHint: "set E2B_API_KEY to a valid key of your account",
	})
	if err != nil {
		return nil, err
	}
	p := &Provider{
		o: o, api: &api{client: client, create: o.CreateTimeout}, http: o.Transport,
		creating: make(map[sandpit.ID]bool), discards: make(map[string]bool), boxes: make(map[string]*sandboxInfo), ended: make(map[string]bool),
	}
	if p.http == nil {
		p.own = newSandboxTransport()
		p.http = p.own
	}
	p.records.dir, p.records.memory, p.records.saving = o.SnapshotDir, make(map[sandpit.SnapshotID]snapshotRecord), make(map[sandpit.SnapshotID]bool)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.watch = newWatcher(p)
	return p, nil
}

// closeTime bounds the deletion of discarded sandboxes when the provider is closed.
const closeTime = 20 * time.Second

// Close implements sandpit.Provider. Sandboxes keep running. It waits a while for the deletion of those whose creation
// failed; List of a later provider returns the others.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.wg.Wait()
	}()
	late := time.AfterFunc(closeTime, p.cancel)
	defer late.Stop()
	p.watch.stop()
	<-done
	p.cancel()
	if p.own != nil {
		p.own.CloseIdleConnections()
	}
	p.api.client.Close()
	return nil
}

// errClosed is the error of calls of a closed provider.
var errClosed = sandpit.Errorf(sandpit.Unavailable, "provider e2b is closed")

// begin counts a goroutine of the provider. The caller calls p.wg.Done.
func (p *Provider) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	p.wg.Add(1)
	return nil
}

// info returns a copy of what the provider knows about a sandbox.
func (p *Provider) info(cloudID string) sandboxInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.boxes[cloudID]; known != nil {
		return *known
	}
	return sandboxInfo{}
}

// changeInfo changes what the provider knows about a sandbox.
func (p *Provider) changeInfo(cloudID string, change func(*sandboxInfo)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.boxes[cloudID]
	if known == nil {
		known = &sandboxInfo{}
		p.boxes[cloudID] = known
	}
	change(known)
}

// maxEnded bounds how many ended sandboxes are remembered. List returns the twins of earlier ones.
const maxEnded = 10_000

// forget removes what is known about a sandbox that has ended.
func (p *Provider) forget(cloudID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.boxes[cloudID]; known != nil && known.attempt != "" {
		if len(p.ended) >= maxEnded {
			clear(p.ended)
		}
		p.ended[known.attempt] = true
	}
	delete(p.boxes, cloudID)
}
