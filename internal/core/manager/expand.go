package manager

import (
	"context"
	"errors"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// expander completes requests for sandboxes of templates and snapshots.
type expander struct {
	o         *Options
	store     *store.Store
	templates *templateRecords
}

// errNoTemplate is the error for an image that is not a template of this server. The provider may
// know it.
var errNoTemplate = errors.New("no such template")

// findBuild returns the template and the build that an image names, for an owner that may create
// sandboxes from it; see Templates.Get.
//
// errNoTemplate: the image is not a template, or the name, without an owner, means none. NotFound:
// there is no such template, or it has no such finished build.
func (tr *templateRecords) findBuild(ctx context.Context, owner string, image sandpit.Image) (sandpit.Template, store.TemplateBuild, error) {
	var b store.TemplateBuild
	ref, ok := image.Template()
	if !ok {
		return sandpit.Template{}, b, errNoTemplate
	}
	t, err := tr.findTemplate(ctx, owner, ref)
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
	b, err = tr.store.Templates().Build(ctx, id)
	if errors.Is(err, sandpit.NotFound) || err == nil && (b.Status != sandpit.BuildReady || b.Template != t.ID) {
		err = sandpit.Errorf(sandpit.NotFound, "template %s has no build %s that has finished", t.Name, id)
	}
	return t, b, err
}

// Expand completes a request for a sandbox that starts from a snapshot or a template: its image is
// "snapshot:" and the ID or name of an owner's snapshot, or "template:" and what Templates.Get
// finds. What the snapshot or template determines is filled in and authorized; Create does the same.
//
// NotFound: there is no such snapshot or build. Invalid: the request contradicts the snapshot.
// Other errors are those of CreateRequest.Authorize.
func (m *Manager) Expand(ctx context.Context, r CreateRequest) (CreateRequest, error) {
	r.Spec = r.Spec.Clone()
	r, err := m.expander.expandRequest(ctx, r)
	if err == nil && r.Authorize != nil {
		err = r.Authorize(&r.Spec)
	}
	return r, err
}

// expandRequest fills in what the snapshot or template of a request determines.
func (ex *expander) expandRequest(ctx context.Context, r CreateRequest) (CreateRequest, error) {
	name, ok := r.Spec.Image.Snapshot()
	if !ok {
		r.Spec.Template, r.trusted = sandpit.TemplateOrigin{}, false
		return ex.expandTemplate(ctx, r)
	}
	if r, ok, err := ex.expandSnapshot(ctx, r, name); ok || err != nil {
		return r, err
	}
	n, err := ex.store.Snapshots().Snapshot(ctx, r.Owner, string(name))
	switch {
	case err == nil && n.State != store.SnapshotReady:
		err = sandpit.Errorf(sandpit.NotFound, "snapshot %.100s not found", string(name))
	case err == nil && n.Problem != "":
		err = sandpit.Errorf(sandpit.Unsupported, "snapshot %s: %s", string(name), n.Problem)
	case errors.Is(err, sandpit.NotFound):
		err = sandpit.WithHint(err, "see: sandpit snapshot ls")
	}
	if err != nil {
		return r, err
	}
	if !namesProvider(r.Provider, n.Provider) {
		return r, sandpit.Errorf(sandpit.Invalid, "snapshot %s is kept by provider %s, but the sandbox uses provider %s",
			string(name), n.Provider, r.Provider)
	}
	r.Provider = n.Provider
	r.Spec, err = mergeSnapshotSpec(n, r.Spec.Clone(), r.Offline)
	r.Offline = r.Offline || err == nil && !n.Spec.Network.Online // not even by the server's default
	return r, err
}

// mergeSnapshotSpec returns the spec of a sandbox that starts from a snapshot.
func mergeSnapshotSpec(n store.Snapshot, s sandpit.Spec, offline bool) (sandpit.Spec, error) {
	fixed := n.Spec.Clone()
	other := func(what string) error {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "snapshot %s has other %s than the request; they cannot be changed", n.ID, what),
			"leave it out")
	}
	if len(s.Mounts) > 0 && !slices.Equal(s.Mounts, fixed.Mounts) {
		return s, other("mounts")
	}
	if s.Resources != (sandpit.Resources{}) && s.Resources != fixed.Resources {
		return s, other("limits")
	}
	if s.Network.Online && !fixed.Network.Online || offline && fixed.Network.Online {
		return s, other("network")
	}
	if fixed.Network.Online && !s.Network.Online {
		if s.Network.Equal(sandpit.NetworkPolicy{}) {
			s.Network = fixed.Network
		}
		s.Network.Online = true
	}
	s.Image, s.Mounts, s.Resources, s.Template = sandpit.SnapshotImage(n.ID), fixed.Mounts, fixed.Resources, fixed.Template
	for to, from := range map[*string]string{&s.User: fixed.User, &s.WorkDir: fixed.WorkDir, &s.Hostname: fixed.Hostname} {
		if *to == "" {
			*to = from
		}
	}
	return s, nil
}

// expandTemplate completes a request for a sandbox of a template. A request whose image is not a
// template is not changed.
func (ex *expander) expandTemplate(ctx context.Context, r CreateRequest) (CreateRequest, error) {
	t, b, err := ex.templates.findBuild(ctx, r.templateOwner(), r.Spec.Image)
	if errors.Is(err, errNoTemplate) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return ex.applyTemplate(ctx, r, t, b)
}

// templateOwner returns the owner whose names of templates the request uses: "" if the
// configuration names the template, see Templates.Get.
func (r CreateRequest) templateOwner() string {
	if r.Configured {
		return ""
	}
	return r.Owner
}

// applyTemplate fills in what a template determines.
func (ex *expander) applyTemplate(ctx context.Context, r CreateRequest, t sandpit.Template, b store.TemplateBuild) (CreateRequest, error) {
	if !namesProvider(r.Provider, ex.o.BuilderProvider) {
		return r, sandpit.Errorf(sandpit.Invalid, "sandboxes of templates use provider %s, but the request names %s",
			ex.o.BuilderProvider, r.Provider)
	}
	r.Provider, r.Spec, r.startRecipe = ex.o.BuilderProvider, r.Spec.Clone(), nil
	env, err := b.Recipe.Environment(r.Spec.Env)
	if err != nil {
		return r, err
	}
	r.Spec.Env, r.Spec.Template = env, sandpit.TemplateOrigin{Template: t.ID, Build: b.ID, Name: t.Name}
	if !r.Offline && r.Spec.Network.Equal(sandpit.NetworkPolicy{}) {
		r.Spec.Network = b.Recipe.Network.Clone()
	}
	if b.Snapshot != "" {
		n, err := ex.store.Templates().BuildSnapshot(ctx, b.Snapshot)
		if err != nil && !errors.Is(err, sandpit.NotFound) {
			return r, err
		}
		if err == nil && ex.canStartFrom(n, r) {
			r.Spec.Resources = n.Spec.Resources
			origin := r.Spec.Template
			r.Spec, err = mergeSnapshotSpec(n, r.Spec, r.Offline)
			r.Spec.Template = origin
			r.Offline = r.Offline || !n.Spec.Network.Online
			return r, err
		}
	}
	r.Spec.Image, r.trusted = b.Image, true
	fillResources(&r.Spec.Resources, ex.o.Enforceable(r.Provider, b.Resources))
	if b.Recipe.Start != "" {
		r.startRecipe = &b.Recipe
	}
	return r, nil
}

// canStartFrom reports whether a sandbox can start from the snapshot of its template: the request
// does not contradict what the snapshot determines.
func (ex *expander) canStartFrom(n store.Snapshot, r CreateRequest) bool {
	asked, fixed := r.Spec.Resources, n.Spec.Resources
	fillResources(&asked, fixed)
	switch {
	case ex.o.Enforceable(n.Provider, fixed) != fixed: // it was saved where they were enforced
		return false
	case n.State != store.SnapshotReady || n.Problem != "":
		return false
	case asked != fixed || len(r.Spec.Mounts) > 0 && !slices.Equal(r.Spec.Mounts, n.Spec.Mounts):
		return false
	}
	return r.Spec.Network.Online == n.Spec.Network.Online || !r.Offline && !r.Spec.Network.Online
}

// fillResources sets limits that are zero.
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

// expandSnapshot is expandTemplate for a request that names the snapshot of a template, as a
// completed request does. It reports false if the request does not.
func (ex *expander) expandSnapshot(ctx context.Context, r CreateRequest, id sandpit.SnapshotID) (CreateRequest, bool, error) {
	if id.Validate() != nil {
		return r, false, nil //nolint:nilerr // it is a name
	}
	b, err := ex.store.Templates().BuildOfSnapshot(ctx, id)
	if errors.Is(err, sandpit.NotFound) {
		return r, false, nil // it is a snapshot of an owner
	}
	if err != nil || b.Status != sandpit.BuildReady {
		return r, false, err
	}
	r.Spec.Image = sandpit.Image(sandpit.TemplatePrefix + string(b.ID))
	r, err = ex.expandTemplate(ctx, r)
	return r, true, err
}
