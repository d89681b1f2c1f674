package daytona

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// boxName returns the name of a sandbox at Daytona, which is unique in the account.
func boxName(id sandpit.ID) string { return "sandpit-" + string(id) }

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	spec, err := p.specOfSnapshot(spec.Clone())
	if err := errors.Join(id.Validate(), err); err != nil {
		return nil, err
	}
	if err := errors.Join(validateSpec(spec), p.checkOpen()); err != nil {
		return nil, err
	}
	inst, err := p.createSandbox(ctx, id, spec)
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return inst, nil
}

func (p *Provider) createSandbox(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
	r, err := p.newCreateRequest(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	made, err := p.requestBox(ctx, id, r)
	if err != nil {
		return nil, err
	}
	one, err := p.ensureSandbox(id, made.ID)
	if err == nil {
		err = p.bootBox(ctx, one, spec)
	}
	if err != nil {
		return nil, errorsJoinClean(err, p.undoCreation(ctx, id, made.ID, one))
	}
	return &Instance{one}, nil
}

// undoCreation deletes a sandbox whose creation failed.
func (p *Provider) undoCreation(ctx context.Context, id sandpit.ID, ref string, one *sandbox) error {
	clean, cancel := p.cleanupContext(ctx)
	defer cancel()
	if err := p.deleteAndWait(clean, id, ref); err != nil {
		p.o.Log.WarnContext(clean, "daytona: undo the creation of a sandbox", slog.String("sandbox", string(id)), slog.Any("error", err)) // List still returns it
		return err
	}
	if one != nil {
		one.recordEnd(sandpit.Exit{Reason: "its creation failed"})
	}
	return nil
}

// newCreateRequest returns the request for a sandbox.
func (p *Provider) newCreateRequest(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (r createRequest, err error) {
	from := p.originOf(spec.Image)
	l, err := p.limitsFor(spec, from)
	if err != nil {
		return r, err
	}
	network, err := toSettings(spec.Network, sandpit.Unsupported)
	if err != nil {
		return r, err
	}
	volumes, err := p.findMounts(ctx, spec.Mounts)
	if err != nil {
		return r, err
	}
	labels, err := p.newLabels(id, spec, rand.Text())
	if err != nil {
		return r, err
	}
	n := p.intervalsFor(spec.Expiry)
	return createRequest{
		networkSettings: network, Name: boxName(id), Snapshot: from.snapshot, Build: from.build, Env: p.o.environ(spec), Labels: labels,
		Public: p.o.Public, Target: p.o.Target, CPU: l.cpu, Memory: l.memory, Disk: l.disk,
		AutoStop: n.stop, AutoArchive: n.archive, AutoDelete: n.remove, TTL: toTTL(spec.Expiry, time.Now()), Volumes: volumes,
	}, nil
}

// requestBox creates the sandbox at Daytona. If the response is lost, it finds the sandbox by its
// name; a canceled call leaves none.
func (p *Provider) requestBox(ctx context.Context, id sandpit.ID, r createRequest) (box, error) {
	made, err := p.control.createBox(ctx, id, r)
	switch {
	case err == nil:
		if !refPattern().MatchString(made.ID) {
			return made, errors.Join(sandpit.Errorf(sandpit.Internal, "Daytona reports the invalid ID %.100q", made.ID), p.deleteLost(ctx, id, r))
		}
		return made, nil
	case sandpit.CodeOf(err) == sandpit.Conflict || sandpit.CodeOf(err) == sandpit.AlreadyExists:
		found, missing := p.control.getBox(ctx, id, r.Name)
		switch {
		case missing != nil:
			return made, err
		case found.Labels[labelAttempt] == r.Labels[labelAttempt]:
			return found, nil // the network delivered the request twice
		}
		return made, sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s already exists", id)
	case !cloudapi.MayHaveHappened(err) && ctx.Err() == nil:
		return made, err
	case ctx.Err() != nil:
		return made, errorsJoinClean(context.Cause(ctx), p.deleteLost(ctx, id, r))
	}
	found, lookup := p.control.getBox(ctx, id, r.Name)
	if lookup == nil && found.Labels[labelAttempt] == r.Labels[labelAttempt] {
		return found, nil
	}
	return made, errorsJoinClean(err, p.deleteLost(ctx, id, r))
}

// lostLooks is how often deleteLost looks for a sandbox.
const lostLooks = 3

// deleteLost deletes the sandbox that a request may have created although its response was lost. The
// sandbox can appear a moment later.
func (p *Provider) deleteLost(ctx context.Context, id sandpit.ID, r createRequest) error {
	clean, cancel := p.cleanupContext(ctx)
	defer cancel()
	for look := 1; ; look++ {
		found, err := p.control.getBox(clean, id, r.Name)
		switch {
		case err == nil && found.Labels[labelAttempt] != r.Labels[labelAttempt]:
			return nil // that of another call
		case err == nil:
			return p.deleteAndWait(clean, id, found.ID)
		case sandpit.CodeOf(err) != sandpit.NotFound:
			return err
		case look == lostLooks:
			return nil
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-clean.Done():
			return context.Cause(clean)
		}
	}
}

// afterLook returns a channel that receives a value when it is time to look again.
func afterLook() <-chan time.Time { return time.After(300 * time.Millisecond) }

// bootBox waits until a new sandbox runs, and starts its guest and its services.
func (p *Provider) bootBox(ctx context.Context, one *sandbox, spec sandpit.Spec) error {
	now, err := p.startBox(ctx, one.id, one.ref, p.o.CreateTimeout)
	if err != nil {
		return err
	}
	one.applyBox(now, one.moveCount())
	p.checkIntervals(ctx, one.id, spec, now)
	if err := one.ensureGuest(ctx, now); err != nil {
		return err
	}
	return one.startServices(ctx)
}

// checkIntervals warns if the cloud does not stop and delete the sandbox as requested: then it may
// run, and cost, for ever after this server is gone.
func (p *Provider) checkIntervals(ctx context.Context, id sandpit.ID, spec sandpit.Spec, now box) {
	want := p.intervalsFor(spec.Expiry)
	for name, pair := range map[string]struct {
		want int64
		got  *int64
	}{"autoStopInterval": {want.stop, now.AutoStop}, "autoDeleteInterval": {want.remove, now.AutoDelete}} {
		if pair.got == nil || *pair.got != pair.want {
			p.o.Log.WarnContext(ctx, "daytona: interval not applied", slog.String("sandbox", string(id)), slog.String("interval", name), slog.Int64("want", pair.want))
		}
	}
	if toTTL(spec.Expiry, time.Now()) > 0 && now.AutoDestroyAt == "" {
		p.o.Log.WarnContext(ctx, "daytona: deadline not applied; only this server deletes the sandbox then", slog.String("sandbox", string(id)))
	}
}
