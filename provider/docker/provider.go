package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// The labels of a container, and of what else is made in an engine.
const (
	labelID      = "dev.sandpit.id"
	labelManager = "dev.sandpit.manager"
	labelSpec    = "dev.sandpit.spec" // without environment
	labelAttempt = "dev.sandpit.attempt"
	labelPart    = "dev.sandpit.part"   // of what is no sandbox
	labelFiller  = "dev.sandpit.filler" // manager of who fills a volume
)

// Provider makes sandboxes in one engine.
type Provider struct {
	o     Options
	api   *client.Client
	calls *lifetime // of what is done for somebody, which ends with Close
	clean *lifetime // of what removes things, which has a little longer
	wg    sync.WaitGroup

	images  imageStore
	guest   guestVolume
	events  eventStream
	engine  engineFacts
	hearers progressListeners
	swept   sync.Once
	breaks  atomic.Int64 // how often the engine went away

	mu      sync.Mutex
	boxes   map[string]*sandbox // by container
	noticed map[string]bool
	kept    map[sandpit.ID]record // of an ephemeral provider
	closed  bool
}

var _ sandpit.Provider = (*Provider)(nil)

var errClosed = sandpit.Errorf(sandpit.Unavailable, "the provider is closed")

// New returns a Provider. It does not connect yet.
//
// Invalid: options that cannot be. Unsupported: an endpoint of another kind.
func New(o Options) (*Provider, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	api, err := o.Endpoint.newClient()
	if err != nil {
		return nil, err
	}
	p := &Provider{
		o: o, api: api, calls: newLifetime(), clean: newLifetime(), boxes: make(map[string]*sandbox), noticed: make(map[string]bool),
		kept: make(map[sandpit.ID]record),
	}
	if err := p.makeRecordDir(); err != nil {
		return nil, errors.Join(err, api.Close())
	}
	p.events.init()
	p.images.calls = make(map[string]*imageCall)
	p.guest.filling = make(chan struct{}, 1)
	return p, nil
}

// goDo runs f in a goroutine that Close waits for, unless the provider is closed.
func (p *Provider) goDo(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Go(f)
	return true
}

// callContext returns a context for one call of the engine.
func (p *Provider) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return p.boundContext(ctx, p.calls, p.o.CallTimeout)
}

// cleanupContext returns a context for removing what a call has made.
func (p *Provider) cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return p.boundContext(context.WithoutCancel(ctx), p.clean, p.o.CallTimeout)
}

func (p *Provider) boundContext(ctx context.Context, life *lifetime, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, free := life.bindContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, most)
	return ctx, func() {
		cancel()
		free()
	}
}

// sandboxOf returns what this provider knows of a container.
func (p *Provider) sandboxOf(id sandpit.ID, container string) (*sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	b := p.boxes[container]
	if b == nil {
		b = newBox(p, id, container)
		p.boxes[container] = b
	}
	return b, nil
}

func (p *Provider) forgetSandbox(b *sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boxes[b.container] == b {
		delete(p.boxes, b.container)
	}
}

func (p *Provider) knownSandbox(container string) *sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.boxes[container]
}

func (p *Provider) allSandboxes() []*sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*sandbox, 0, len(p.boxes))
	for _, b := range p.boxes {
		list = append(list, b)
	}
	return list
}

// noticeOnce tells of something once.
func (p *Provider) noticeOnce(text string) {
	p.mu.Lock()
	first := !p.noticed[text]
	p.noticed[text] = true
	p.mu.Unlock()
	if first && p.o.Notice != nil {
		p.o.Notice(text)
	}
}

// inspectContainer returns what the engine says of a container. NotFound.
func (p *Provider) inspectContainer(ctx context.Context, id string) (container.InspectResponse, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ContainerInspect(limited, id, client.ContainerInspectOptions{})
	if err == nil && (res.Container.State == nil || res.Container.Config == nil) {
		return res.Container, sandpit.Errorf(sandpit.Internal, "inspect the container: the engine's answer makes no sense")
	}
	return res.Container, p.engineError(ctx, "inspect the container", err)
}

// List implements sandpit.Provider. It also removes records whose container is no
// more, and containers that filled a volume: a program that was killed leaves them
// behind.
func (p *Provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	if err := p.checkReachable(ctx); err != nil {
		return nil, fmt.Errorf("list the containers: %w", err)
	}
	records, err := p.loadRecords() // before the containers, which are there before their records
	if err != nil {
		return nil, err
	}
	if err := p.removeFillers(ctx); err != nil {
		return nil, err
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelManager+"="+p.o.Manager, labelID),
	})
	if err != nil {
		return nil, p.engineError(ctx, "list the containers", err)
	}
	var list []sandpit.Placement
	for _, c := range res.Items {
		id := sandpit.ID(c.Labels[labelID])
		if id.Validate() != nil {
			continue // somebody else's
		}
		one := sandpit.Placement{ID: id, Handle: handle{id, c.ID}.encodeHandle(), CreatedAt: time.Unix(c.Created, 0)}
		if rec, err := p.readRecord(id, c.ID); err == nil {
			one.Spec = rec.Spec
		} else if json.Unmarshal([]byte(c.Labels[labelSpec]), &one.Spec) != nil {
			one.Spec = sandpit.Spec{} // it can be destroyed all the same
		}
		one.Spec.Env = nil
		delete(records, id)
		list = append(list, one)
	}
	for id, rec := range records {
		if err := p.removeRecord(id, rec.Container); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Attach implements sandpit.Provider. A sandbox whose record is lost or damaged can only
// be destroyed.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	h, err := decodeHandle(data)
	if err != nil {
		return nil, err
	}
	inst, err := p.attachSandbox(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", h.ID, err)
	}
	return inst, nil
}

func (p *Provider) attachSandbox(ctx context.Context, h handle) (*Instance, error) {
	if err := p.checkReachable(ctx); err != nil {
		return nil, err
	}
	c, err := p.inspectContainer(ctx, h.Container)
	if err != nil {
		return nil, err
	}
	if c.Config.Labels[labelManager] != p.o.Manager || c.Config.Labels[labelID] != string(h.ID) {
		return nil, sandpit.Errorf(sandpit.NotFound, "the container is not that of this sandbox")
	}
	rec, err := p.readRecord(h.ID, h.Container)
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound && !errors.Is(err, errDamaged) {
		return nil, err
	}
	if err := p.followEvents(ctx); err != nil {
		return nil, err
	}
	b, err := p.sandboxOf(h.ID, h.Container)
	if err != nil {
		return nil, err
	}
	if err := b.refreshState(ctx); err != nil {
		return nil, err
	}
	inst := newInstance(b, rec.Token)
	if b.currentState() == running && rec.Stopped { // whoever started it did not come to the end
		if err := b.settleStart(ctx, inst, rec); err != nil {
			return nil, err
		}
	}
	return inst, nil
}

// tidyTime is how long Close waits for what is being removed.
const tidyTime = 10 * time.Second

// Close implements sandpit.Provider. Sandboxes go on. Calls under way end with
// Unavailable. Also with an engine that hangs it takes no longer than some seconds;
// what could not be removed in that time a later List finds.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.calls.endLifetime(errClosed)
	enough := time.AfterFunc(tidyTime, func() { p.clean.endLifetime(errClosed) })
	defer enough.Stop()
	var boxes sync.WaitGroup
	for _, b := range p.allSandboxes() {
		boxes.Go(b.closeLink)
	}
	boxes.Wait()
	p.wg.Wait()
	return p.api.Close()
}

func isNotFound(err error) bool { return cerrdefs.IsNotFound(err) }
