package e2b

import (
	"context"
	"maps"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// List implements sandpit.Provider.
func (p *Provider) List(ctx context.Context) ([]sandpit.Placement, error) {
	list, err := p.listOwn(ctx, nil)
	if err != nil {
		return nil, err
	}
	all := make([]sandpit.Placement, 0, len(list))
	for _, one := range list {
		id := sandpit.ID(one.Metadata[markID])
		if id.Validate() != nil || !isCloudID(one.ID) {
			p.o.Notice("provider e2b: a sandbox has the metadata of this server and an invalid ID")
			continue
		}
		spec, err := specOf(one)
		if err != nil {
			p.o.Notice("provider e2b: " + err.Error())
		}
		known := p.info(one.ID)
		if known.network != nil {
			spec.Network = known.network.Clone()
		}
		all = append(all, sandpit.Placement{
			ID: id, Handle: handle{id, one.ID}.encode(), Spec: spec, CreatedAt: one.StartedAt, State: stateOf(one.State, known),
		})
	}
	return all, nil
}

// listOwn returns the sandboxes of this server with further metadata. It leaves out those that are to be deleted.
func (p *Provider) listOwn(ctx context.Context, more map[string]string) ([]item, error) {
	if p.isClosed() {
		return nil, errClosed
	}
	metadata := map[string]string{markServer: p.o.Identity}
	maps.Copy(metadata, more)
	list, err := p.api.listSandboxes(ctx, metadata)
	if err != nil {
		return nil, err
	}
	own := list[:0]
	for _, one := range list {
		if !p.isDiscarded(one) {
			own = append(own, one)
		}
	}
	return p.discardTwins(own), nil
}

// stateOf converts a state of the cloud; "" for an unknown one. The cloud calls a stopped sandbox paused.
func stateOf(state string, known sandboxInfo) sandpit.State {
	switch state {
	case stateRunning:
		return sandpit.StateRunning
	case statePaused:
		if known.filesOnly {
			return sandpit.StateStopped
		}
		return sandpit.StatePaused
	}
	return ""
}

// Attach implements sandpit.Provider.
func (p *Provider) Attach(ctx context.Context, data []byte) (sandpit.Instance, error) {
	h, err := parseHandle(data)
	if err != nil {
		return nil, err
	}
	instance, err := p.attachSandbox(ctx, h)
	if err != nil {
		return nil, sandpit.WithSubject(err, sandpit.Subject{Provider: Name, Sandbox: h.ID, Operation: "attach"})
	}
	return instance, nil
}

func (p *Provider) attachSandbox(ctx context.Context, h handle) (*Instance, error) {
	if p.isClosed() {
		return nil, errClosed
	}
	one, err := p.api.describeSandbox(ctx, h.ID, h.Cloud)
	if err != nil {
		return nil, err
	}
	if !hasPairs(one.Metadata, map[string]string{markServer: p.o.Identity, markID: string(h.ID)}) || p.isDiscarded(one) {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s is not one of this server", h.ID)
	}
	spec, err := specOf(one)
	if err != nil {
		return nil, err
	}
	p.changeInfo(h.Cloud, func(known *sandboxInfo) { known.attempt = one.Metadata[markAttempt] })
	b := newSandbox(p, h, spec)
	b.setState(stateOf(one.State, p.info(h.Cloud)))
	if one.State != stateRunning {
		return newInstance(b), nil // the guest is opened when it runs
	}
	if err := b.refreshAccess(ctx, time.Second); err != nil {
		return nil, err
	}
	if err := b.openGuest(ctx, guestSetup{}); err != nil {
		return nil, err
	}
	return newInstance(b), nil
}
