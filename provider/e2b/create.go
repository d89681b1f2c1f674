package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	instance, err := p.createSandbox(ctx, id, spec.Clone())
	if err != nil {
		return nil, sandpit.WithSubject(err, sandpit.Subject{Provider: Name, Sandbox: id, Operation: "create"})
	}
	return instance, nil
}

func (p *Provider) createSandbox(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.isClosed() {
		return nil, errClosed
	}
	spec, template, err := p.specOfSnapshot(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := p.validateSpec(spec); err != nil {
		return nil, err
	}
	release, err := p.reserveID(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	attempt := rand.Text()
	a, err := p.requestSandbox(ctx, id, attempt, spec, template)
	if err != nil {
		return nil, err
	}
	p.changeInfo(a.ID, func(known *sandboxInfo) { known.attempt = attempt })
	instance, err := p.finishCreate(ctx, id, spec, a)
	if err != nil {
		p.forget(a.ID)
		p.discard(ctx, id, attempt, a.ID)
		return nil, err
	}
	return instance, nil
}

// reserveID returns AlreadyExists if a sandbox has the ID, or is being created with it. Otherwise the ID is reserved until
// release is called.
func (p *Provider) reserveID(ctx context.Context, id sandpit.ID) (release func(), err error) {
	p.mu.Lock()
	closed, taken := p.closed, p.creating[id]
	if !closed && !taken {
		p.creating[id] = true
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	exists := sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", id)
	if taken {
		return nil, exists
	}
	release = func() {
		p.mu.Lock()
		delete(p.creating, id)
		p.mu.Unlock()
		p.wg.Done()
	}
	list, err := p.listOwn(ctx, map[string]string{markID: string(id)})
	if err == nil && len(list) > 0 {
		err = exists
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// requestSandbox creates a sandbox at the cloud. The request is not canceled with ctx, because the cloud could create the
// sandbox nevertheless: it is deleted when the response is there.
func (p *Provider) requestSandbox(ctx context.Context, id sandpit.ID, attempt string, spec sandpit.Spec, template string) (access, error) {
	body, err := p.newCreateBody(id, attempt, spec, template)
	if err == nil {
		body.Volumes, err = p.toVolumeMounts(ctx, spec.Mounts)
	}
	if err != nil {
		return access{}, err
	}
	type outcome struct {
		a   access
		err error
	}
	done := make(chan outcome, 1)
	if err := p.begin(); err != nil {
		return access{}, err
	}
	go func() {
		defer p.wg.Done()
		a, err := p.api.createSandbox(p.ctx, id, body)
		if cloudapi.MayHaveHappened(err) {
			a, err = p.findAttempt(id, attempt, err)
		}
		if err == nil && !isCloudID(a.ID) {
			err = sandpit.Errorf(sandpit.Internal, "provider e2b: create: the cloud returned the invalid ID %.100q", a.ID)
		}
		done <- outcome{a, err}
	}()
	select {
	case o := <-done:
		if cloudapi.MayHaveHappened(o.err) {
			p.discard(ctx, id, attempt, "")
		}
		return o.a, o.err
	case <-ctx.Done():
		p.discardLater(id, attempt, func() (string, bool) {
			o := <-done
			return o.a.ID, o.err == nil || cloudapi.MayHaveHappened(o.err)
		})
		return access{}, ctx.Err()
	}
}

// findAttempt looks for the sandbox of an attempt whose response was lost. It returns lost if the sandbox does not exist yet.
func (p *Provider) findAttempt(id sandpit.ID, attempt string, lost error) (access, error) {
	list, err := p.api.listSandboxes(p.ctx, map[string]string{markServer: p.o.Identity, markAttempt: attempt})
	if err != nil || len(list) == 0 {
		return access{}, lost
	}
	a, err := p.api.connectSandbox(p.ctx, id, list[0].ID, minTimeout)
	if err != nil {
		return access{}, errors.Join(lost, err)
	}
	return a, nil
}

// newCreateBody returns the request for a sandbox. template is "" for that of the image.
func (p *Provider) newCreateBody(id sandpit.ID, attempt string, spec sandpit.Spec, template string) (createBody, error) {
	metadata, err := p.newMetadata(id, attempt, spec)
	if err != nil {
		return createBody{}, err
	}
	timeout, err := p.timeoutOf(spec.Expiry, time.Now())
	if err != nil {
		return createBody{}, err
	}
	body := createBody{
		Template: cmp.Or(template, p.templateOf(spec.Image)), Timeout: seconds(timeout), Secure: true, Metadata: metadata, Env: spec.Env, Internet: spec.Network.Online,
	}
	switch spec.Expiry.Action {
	case "", sandpit.ActionKill:
	case sandpit.ActionPause, sandpit.ActionSuspend:
		body.AutoPause = true
	case sandpit.ActionStop:
		body.AutoPause, body.KeepMemory = true, new(bool)
	default:
		return body, sandpit.Errorf(sandpit.Unsupported, "action %q at the expiry: E2B can kill and pause sandboxes", spec.Expiry.Action)
	}
	private := false
	network := networkBody{Public: &private} // ports need the traffic token
	if spec.Network.Online {
		if network, err = toNetwork(spec.Network); err != nil {
			return body, err
		}
		network.Public = &private
	}
	body.Network = &network
	return body, nil
}

// templateOf returns the template that an image names.
func (p *Provider) templateOf(image sandpit.Image) string {
	if image == "" || image == sandpit.HostImage {
		return p.o.Template
	}
	return string(image)
}

// timeoutOf returns the time until an expiry. Invalid with ErrDeadlineTooLate: E2B has no such times.
func (p *Provider) timeoutOf(e sandpit.Expiry, now time.Time) (time.Duration, error) {
	if e.Deadline.IsZero() {
		return p.o.Timeout, nil
	}
	left := e.Deadline.Sub(now)
	if left > maxTimeout {
		return 0, sandpit.Errorf(sandpit.Invalid, "deadline %s: %w", e.Deadline.Format(time.RFC3339), sandpit.ErrDeadlineTooLate)
	}
	return max(left, minTimeout), nil
}

// finishCreate checks the limits of a new sandbox and opens its guest.
func (p *Provider) finishCreate(ctx context.Context, id sandpit.ID, spec sandpit.Spec, a access) (*Instance, error) {
	if spec.Resources != (sandpit.Resources{}) {
		one, err := p.api.describeSandbox(ctx, id, a.ID)
		if err != nil {
			return nil, err
		}
		if err := checkResources(spec.Resources, one); err != nil {
			return nil, err
		}
	}
	b := newSandbox(p, handle{id, a.ID}, spec)
	b.setAccess(a)
	if err := b.openGuest(ctx, guestSetup{env: spec.Env, hostname: spec.Hostname, isNew: true}); err != nil {
		return nil, err
	}
	return newInstance(b), nil
}
