package manager

import (
	"context"
	"errors"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// errNoTemplate says that an image is none of the templates here. It may be one that the
// provider knows.
var errNoTemplate = errors.New("there is no such template")

// findBuild returns the template and the build that an image stands for, to an owner who
// may make sandboxes of it; see FindTemplate.
//
// errNoTemplate: it is none, or the name, without an owner, means none. NotFound: there is
// no such template, or it has no such build that is ready.
func (m *Manager) findBuild(ctx context.Context, owner string, image sandpit.Image) (sandpit.Template, store.TemplateBuild, error) {
	var b store.TemplateBuild
	ref, ok := image.Template()
	if !ok {
		return sandpit.Template{}, b, errNoTemplate
	}
	t, err := m.FindTemplate(ctx, owner, ref)
	if parsed := sandpit.ParseTemplateRef(ref); parsed.Owner == "" && !parsed.IsID() && errors.Is(err, sandpit.NotFound) {
		return t, b, errNoTemplate
	}
	if err != nil {
		return t, b, sandpit.WithHint(err, "see: sandpit template ls")
	}
	id, err := buildOf(t, ref)
	if err != nil {
		return t, b, err
	}
	b, err = m.o.Store.Build(ctx, id)
	if errors.Is(err, sandpit.NotFound) || err == nil && (b.Status != sandpit.BuildReady || b.Template != t.ID) {
		err = sandpit.Errorf(sandpit.NotFound, "template %s has no build %s that is ready", t.Name, id)
	}
	return t, b, err
}

// expandTemplate completes a request for a sandbox of a template. It stays as it is if
// nothing here is what it names.
func (m *Manager) expandTemplate(ctx context.Context, r CreateRequest) (CreateRequest, error) {
	t, b, err := m.findBuild(ctx, r.templateOwner(), r.Spec.Image)
	if errors.Is(err, errNoTemplate) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return m.spawn(ctx, r, t, b)
}

// templateOwner is the owner to whom the name of a template means something: "" if the
// configuration names the template, see FindTemplate.
func (r CreateRequest) templateOwner() string {
	if r.Configured {
		return ""
	}
	return r.Owner
}

// spawn puts into a request what a template says.
func (m *Manager) spawn(ctx context.Context, r CreateRequest, t sandpit.Template, b store.TemplateBuild) (CreateRequest, error) {
	if r.Provider != "" && r.Provider != m.o.BuilderProvider {
		return r, sandpit.Errorf(sandpit.Invalid, "sandboxes of templates are made by provider %s, and this one is to be made by %s",
			m.o.BuilderProvider, r.Provider)
	}
	r.Provider, r.Spec, r.start = m.o.BuilderProvider, r.Spec.Clone(), nil
	env, err := b.Recipe.Environment(r.Spec.Env)
	if err != nil {
		return r, err
	}
	r.Spec.Env, r.Spec.Template = env, sandpit.TemplateOrigin{Template: t.ID, Build: b.ID, Name: t.Name}
	if !r.Offline && r.Spec.Network.Equal(sandpit.NetworkPolicy{}) {
		r.Spec.Network = b.Recipe.Network.Clone()
	}
	if b.Snapshot != "" {
		n, err := m.o.Store.BuildSnapshot(ctx, b.Snapshot)
		if err != nil && !errors.Is(err, sandpit.NotFound) {
			return r, err
		}
		if err == nil && m.begins(n, r) {
			r.Spec.Resources = n.Spec.Resources
			origin := r.Spec.Template
			r.Spec, err = begun(n, r.Spec, r.Offline)
			r.Spec.Template = origin
			r.Offline = r.Offline || !n.Spec.Network.Online
			return r, err
		}
	}
	r.Spec.Image, r.trusted = b.Image, true
	fillResources(&r.Spec.Resources, m.o.Enforceable(r.Provider, b.Resources))
	if b.Recipe.Start != "" {
		r.start = &b.Recipe
	}
	return r, nil
}

// begins reports whether a sandbox can begin as the snapshot of its template: what that
// fixes is as it is asked for, or nobody asks.
func (m *Manager) begins(n store.Snapshot, r CreateRequest) bool {
	asked, fixed := r.Spec.Resources, n.Spec.Resources
	fillResources(&asked, fixed)
	switch {
	case m.o.Enforceable(n.Provider, fixed) != fixed: // it was saved where they could be
		return false
	case n.State != store.SnapshotReady || n.Problem != "":
		return false
	case asked != fixed || len(r.Spec.Mounts) > 0 && !slices.Equal(r.Spec.Mounts, n.Spec.Mounts):
		return false
	}
	return r.Spec.Network.Online == n.Spec.Network.Online || !r.Offline && !r.Spec.Network.Online
}

// fillResources gives limits that are not there their defaults.
func fillResources(to *sandpit.Resources, from sandpit.Resources) {
	if to.Memory == 0 {
		to.Memory = from.Memory
	}
	if to.CPUs == 0 {
		to.CPUs = from.CPUs
	}
	if to.Disk == 0 {
		to.Disk = from.Disk
	}
	if to.PIDs == 0 {
		to.PIDs = from.PIDs
	}
}

// expandSnapshot is expandTemplate for a request that names the snapshot of a template,
// as it does when it was completed before. It reports false if it does not.
func (m *Manager) expandSnapshot(ctx context.Context, r CreateRequest, id sandpit.SnapshotID) (CreateRequest, bool, error) {
	if id.Validate() != nil {
		return r, false, nil //nolint:nilerr // then it is a name
	}
	b, err := m.o.Store.BuildOfSnapshot(ctx, id)
	if errors.Is(err, sandpit.NotFound) {
		return r, false, nil // it is one of an owner's
	}
	if err != nil || b.Status != sandpit.BuildReady {
		return r, false, err
	}
	r.Spec.Image = sandpit.Image(sandpit.TemplatePrefix + string(b.ID))
	r, err = m.expandTemplate(ctx, r)
	return r, true, err
}
