package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// The labels of containers, images and volumes in an engine.
const (
	labelID      = "dev.sandpit.id"
	labelManager = "dev.sandpit.manager"
	labelSpec    = "dev.sandpit.spec" // without environment
	labelAttempt = "dev.sandpit.attempt"
	labelPart    = "dev.sandpit.part"   // of anything but sandboxes
	labelFiller  = "dev.sandpit.filler" // the manager of a container that fills a volume
)

// Provider creates sandboxes in one engine.
type Provider struct {
	o         Options
	engine    *engine
	events    *eventStream
	images    *imageStore
	records   *recordStore
	sandboxes *sandboxTable
	guest     *guestVolume
	swept     sync.Once
	snapshots sync.RWMutex // read-locked while a snapshot is being taken or removed
}

var _ sandpit.Provider = (*Provider)(nil)

var errClosed = sandpit.Errorf(sandpit.Unavailable, "the provider is closed")

// New returns a Provider. It does not connect yet.
//
// Invalid: invalid options. Unsupported: an endpoint of another kind.
func New(o Options) (*Provider, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	e, err := newEngine(o)
	if err != nil {
		return nil, err
	}
	records := newRecordStore(o)
	if err := records.makeDir(); err != nil {
		return nil, errors.Join(err, e.api.Close())
	}
	table := newSandboxTable()
	return &Provider{
		o: o, engine: e, records: records, sandboxes: table, events: newEventStream(e, table),
		images: newImageStore(e), guest: newGuestVolume(e),
	}, nil
}

// List implements sandpit.Provider. It also removes what killed programs left: records without a
// container, and containers that filled a volume.
func (p *Provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	if err := p.events.checkReachable(ctx); err != nil {
		return nil, fmt.Errorf("list the containers: %w", err)
	}
	records, err := p.records.loadRecords() // first, because a container is created before its record
	if err != nil {
		return nil, err
	}
	if err := p.guest.removeFillers(ctx); err != nil {
		return nil, err
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelManager+"="+p.o.Manager, labelID),
	})
	if err != nil {
		return nil, p.engine.wrapError(ctx, "list the containers", err)
	}
	var list []sandpit.Placement
	for _, c := range res.Items {
		id := sandpit.ID(c.Labels[labelID])
		if id.Validate() != nil {
			continue // not a sandbox of sandpit
		}
		one := sandpit.Placement{ID: id, Handle: handle{id, c.ID}.encodeHandle(), CreatedAt: time.Unix(c.Created, 0)}
		if rec, err := p.records.readRecord(id, c.ID); err == nil {
			one.Spec = rec.Spec
		} else if json.Unmarshal([]byte(c.Labels[labelSpec]), &one.Spec) != nil {
			one.Spec = sandpit.Spec{} // the sandbox can still be destroyed
		}
		one.Spec.Env = nil
		delete(records, id)
		list = append(list, one)
	}
	for id, rec := range records {
		if err := p.records.removeRecord(id, rec.Container); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Attach implements sandpit.Provider. A sandbox with a missing or damaged record can only be
// destroyed.
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
	if err := p.events.checkReachable(ctx); err != nil {
		return nil, err
	}
	c, err := p.engine.inspectContainer(ctx, h.Container)
	if err != nil {
		return nil, err
	}
	if c.Config.Labels[labelManager] != p.o.Manager || c.Config.Labels[labelID] != string(h.ID) {
		return nil, sandpit.Errorf(sandpit.NotFound, "the container belongs to another sandbox")
	}
	rec, err := p.records.readRecord(h.ID, h.Container)
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound && !errors.Is(err, errDamaged) {
		return nil, err
	}
	if err := p.events.startFollowing(ctx); err != nil {
		return nil, err
	}
	b, err := p.sandboxes.ensureSandbox(p, h.ID, h.Container)
	if err != nil {
		return nil, err
	}
	if err := b.refreshState(ctx); err != nil {
		return nil, err
	}
	inst := newInstance(b, rec.Token)
	if b.currentState() == running && rec.Stopped { // its start was interrupted
		if err := b.settleStart(ctx, inst, rec); err != nil {
			return nil, err
		}
	}
	return inst, nil
}

// tidyTime is how long Close waits for removals.
const tidyTime = 10 * time.Second

// Close implements sandpit.Provider. Sandboxes keep running. Calls under way fail with Unavailable.
// Close takes some seconds at most, even if the engine hangs; a later List removes what was left.
func (p *Provider) Close() error {
	p.sandboxes.refuseSandboxes()
	p.engine.refuseCalls()
	timeout := time.AfterFunc(tidyTime, func() { p.engine.clean.endLifetime(errClosed) })
	defer timeout.Stop()
	var boxes sync.WaitGroup
	for _, b := range p.sandboxes.listSandboxes() {
		boxes.Go(b.closeLink)
	}
	boxes.Wait()
	p.engine.wg.Wait()
	return p.engine.api.Close()
}

func isNotFound(err error) bool { return cerrdefs.IsNotFound(err) }
