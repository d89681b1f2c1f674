package daytona

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// providerName is the name of the provider in errors.
const providerName = "daytona"

// The labels of sandboxes.
const (
	ownLabels    = "dev.sandpit." // of this package
	labelID      = ownLabels + "id"
	labelManager = ownLabels + "manager"
	labelSpec    = ownLabels + "spec" // without the environment
	labelAttempt = ownLabels + "attempt"

	// serverLabels begin names of labels that other sandpit servers do not accept.
	serverLabels = "sandpit."
)

// Provider creates sandboxes with one API key.
type Provider struct {
	o       Options
	control control
	toolbox toolbox

	life    context.Context //nolint:containedctx // it ends when the provider is closed
	endLife context.CancelFunc
	wg      sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	sandboxes map[string]*sandbox // by their IDs at Daytona

	watch watcher

	snapshotRecords snapshotRecords // of an ephemeral provider
}

var _ sandpit.Provider = (*Provider)(nil)

var errClosed = sandpit.Errorf(sandpit.Unavailable, "the provider is closed")

// New returns a Provider. It does not connect yet.
//
// Invalid: invalid options. Unauthenticated: no key.
func New(o Options) (*Provider, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Manager == "" {
		if o.Manager, err = o.readOrCreate(managerFile); err != nil {
			return nil, err
		}
	}
	if !o.Ephemeral {
		if err := os.MkdirAll(filepath.Join(o.StateDir, snapshotsName), 0o700); err != nil {
			return nil, fmt.Errorf("create the state directory: %w", err)
		}
	}
	c, err := newControl(o)
	if err != nil {
		return nil, err
	}
	p := &Provider{o: o, control: c, toolbox: newToolbox(o), sandboxes: make(map[string]*sandbox)}
	p.life, p.endLife = context.WithCancel(context.Background())
	p.watch.p = p
	return p, nil
}

// Endpoint returns the URL of the control API.
func (p *Provider) Endpoint() string { return p.control.client.Endpoint() }

// List implements sandpit.Provider.
func (p *Provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	all, err := p.control.listBoxes(ctx, map[string]string{labelManager: p.o.Manager})
	if err != nil {
		return nil, err
	}
	var list []sandpit.Placement
	for _, b := range all {
		id, owned := p.owns(b)
		if !owned || b.State.isGone() {
			continue
		}
		spec, err := specOf(b)
		if err != nil {
			spec = sandpit.Spec{} // the sandbox can still be destroyed
		}
		list = append(list, sandpit.Placement{
			ID: id, Handle: handle{id, b.ID}.encodeHandle(), Spec: spec, CreatedAt: parseTime(b.CreatedAt), State: b.State.toState(),
		})
	}
	return list, nil
}

// owns returns the ID of a sandbox, and whether this provider has created it.
func (p *Provider) owns(b box) (sandpit.ID, bool) {
	id := sandpit.ID(b.Labels[labelID])
	return id, b.Labels[labelManager] == p.o.Manager && id.Validate() == nil && refPattern().MatchString(b.ID)
}

// Attach implements sandpit.Provider.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	h, err := decodeHandle(data)
	if err != nil {
		return nil, err
	}
	inst, err := p.attachBox(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", h.ID, err)
	}
	return inst, nil
}

func (p *Provider) attachBox(ctx context.Context, h handle) (*Instance, error) {
	b, err := p.control.getBox(ctx, h.ID, h.Box)
	if err != nil {
		return nil, err
	}
	id, owned := p.owns(b)
	if !owned || id != h.ID || b.State.isGone() {
		return nil, sandpit.Errorf(sandpit.NotFound, "there is no such sandbox at Daytona")
	}
	one, err := p.ensureSandbox(id, b.ID)
	if err != nil {
		return nil, err
	}
	one.applyBox(b, one.moveCount())
	if b.State == stateStarted {
		if err := one.ensureGuest(ctx, b); err != nil {
			return nil, err
		}
	}
	return &Instance{one}, nil
}

// ensureSandbox returns the sandbox of an ID at Daytona, and adds it if it is not known.
func (p *Provider) ensureSandbox(id sandpit.ID, ref string) (*sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	one := p.sandboxes[ref]
	if one == nil {
		one = newSandbox(p, id, ref)
		p.sandboxes[ref] = one
	}
	return one, nil
}

func (p *Provider) forgetSandbox(one *sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[one.ref] == one {
		delete(p.sandboxes, one.ref)
	}
}

// checkOpen returns an error if the provider is closed.
func (p *Provider) checkOpen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	return nil
}

// goDo runs do in a goroutine that Close waits for. It returns false if the provider is closed.
func (p *Provider) goDo(do func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(do)
	return true
}

// Close implements sandpit.Provider. Sandboxes keep running until the cloud stops them.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	all := p.sandboxes
	p.sandboxes = make(map[string]*sandbox)
	p.mu.Unlock()
	p.endLife()
	for _, one := range all {
		one.closeConnections()
	}
	p.wg.Wait()
	p.control.client.Close()
	p.toolbox.closeIdle()
	return nil
}

// cleanupTime bounds the cleanup after a call that failed.
const cleanupTime = 30 * time.Second

// cleanupContext returns a context for cleaning up after a call whose own context may have ended.
func (p *Provider) cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}

// ReadAccount implements sandpit.AccountReader.
func (p *Provider) ReadAccount(ctx context.Context) (sandpit.Account, error) {
	a := sandpit.Account{
		Endpoint: p.Endpoint(),
		Abilities: []string{
			"archive", "network rules", "online", "pause", "ports", "previews", "renew", "snapshots", "stats", "stop", "volumes",
		},
		Missing: map[string]string{
			"claim":            "Daytona cannot change the environment of a sandbox",
			"host directories": "the cloud does not see this machine's files",
			"deny rules":       "Daytona has only lists of what is allowed",
			"export":           "Daytona does not give out the files of a snapshot",
			"resize":           "Daytona resizes only some classes of sandboxes",
			"hostname":         "Daytona chooses the host name",
		},
	}
	all, err := p.control.listBoxes(ctx, map[string]string{labelManager: p.o.Manager})
	if err != nil {
		return a, err
	}
	for _, b := range all {
		if _, owned := p.owns(b); owned && !b.State.isGone() {
			a.Sandboxes++
		}
	}
	a.Name = p.control.readKeyName(ctx)
	return a, nil
}

// readKeyName returns the name of the API key, or "" if the server does not tell it.
func (c control) readKeyName(ctx context.Context) string {
	var key struct {
		Name string `json:"name"`
	}
	if err := c.getInto(ctx, "get the API key", "/api-keys/current", &key); err != nil {
		return "" // older servers do not have the call; the list has shown that the key is valid
	}
	return cleanText(key.Name)
}

// Check returns an error if the server cannot be used with the key.
func (p *Provider) Check(ctx context.Context) error {
	_, err := p.control.listBoxes(ctx, map[string]string{labelManager: p.o.Manager})
	return err
}

// errorsJoinClean adds the error of a cleanup.
func errorsJoinClean(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("undo the creation: %w", cleanup))
}

// defaultTransport returns the transport of calls of toolboxes and previews. Connections that are
// upgraded need HTTP/1.
func defaultTransport() *http.Transport {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialHost,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    15 * time.Second,
		DisableCompression:     true,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// dialHost opens a connection. Names below localhost are this machine, as in browsers: resolvers often
// do not know them.
func dialHost(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(strings.ToLower(host), ".localhost") {
		address = net.JoinHostPort("localhost", port)
	}
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return d.DialContext(ctx, network, address)
}
