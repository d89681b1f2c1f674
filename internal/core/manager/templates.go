package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Templates are the templates of all owners. All methods may be called concurrently.
type Templates struct {
	builds    *Builds
	clock     clock.Clock
	log       *slog.Logger
	o         *Options
	store     *store.Store
	templates *templateRecords
}

// TemplateRequest asks for a build of a template.
type TemplateRequest struct {
	Owner string
	// Name is what the owner calls the template, which is made if there is none.
	Name string
	// Tags are what the build is called when it is ready. Default: sandpit.DefaultTag.
	Tags []string
	// Resources are those of the template's sandboxes, where the recipe names none.
	Resources sandpit.Resources
}

// Create finds or makes a template, and makes a build of it, which waits for
// StartBuild. One that nobody starts within an hour is forgotten.
//
// Invalid: the name or a tag. Exhausted: the owner has as much as there may be.
// Unsupported: templates cannot be built here.
func (ts *Templates) Create(ctx context.Context, r TemplateRequest) (sandpit.Template, sandpit.TemplateBuild, error) {
	var t sandpit.Template
	var b store.TemplateBuild
	err := ts.templates.withEvent(ctx, "create template", r.Owner, r.Name, func(ctx context.Context) (err error) {
		if ts.o.Builder == nil {
			return sandpit.Errorf(sandpit.Unsupported, "templates cannot be built by this server")
		}
		if len(r.Tags) == 0 {
			r.Tags = []string{sandpit.DefaultTag}
		}
		slices.Sort(r.Tags)
		r.Tags = slices.Compact(r.Tags)
		for _, name := range append([]string{r.Name}, r.Tags...) {
			if err := sandpit.CheckTemplateName(name); err != nil {
				return err
			}
		}
		now := ts.clock.Now()
		t, err = ts.store.EnsureTemplate(ctx, sandpit.Template{
			ID: sandpit.NewTemplateID(), Owner: r.Owner, Name: r.Name, CreatedAt: now, UpdatedAt: now,
		}, max(0, ts.o.MaxTemplates))
		if err != nil {
			return err
		}
		b = store.TemplateBuild{Owner: r.Owner, TemplateBuild: sandpit.TemplateBuild{
			ID: sandpit.NewBuildID(), Template: t.ID, Status: sandpit.BuildWaiting, Tags: r.Tags, Resources: r.Resources, CreatedAt: now,
		}}
		return ts.store.InsertBuild(ctx, b, ts.templates.newLimits())
	})
	return ts.templates.addCount(t), b.TemplateBuild, err
}

// Get returns the template that an owner means by a sandpit.TemplateRef. A name
// without an owner is the owner's own, else one that an administrator shares, else one that
// is part of the program and was built, see PrepareBuiltin; a public one
// of others is found by its full name, or by an ID. The owner "" has none of its own: what
// it means by a name is what the administrator does.
//
// NotFound: there is none, or it is another owner's and not public.
func (ts *Templates) Get(ctx context.Context, owner, ref string) (sandpit.Template, error) {
	return ts.templates.findTemplate(ctx, owner, ref)
}

// List returns templates in the order of their IDs.
func (ts *Templates) List(ctx context.Context, f store.TemplateFilter) ([]sandpit.Template, error) {
	list, err := ts.store.Templates(ctx, f)
	for i, t := range list {
		list[i] = ts.templates.addCount(t)
	}
	return list, err
}

// SetPublic says whether sandboxes of every owner may be made of a template, as
// OWNER/NAME. With share, which is for administrators' own templates, the name alone means
// it as well, until it is public no longer.
//
// Errors are those of FindTemplate. PermissionDenied: it is another's.
func (ts *Templates) SetPublic(ctx context.Context, owner, ref string, public, share bool) (sandpit.Template, error) {
	var t sandpit.Template
	err := ts.templates.withEvent(ctx, "publish template", owner, ref, func(ctx context.Context) (err error) {
		if t, err = ts.templates.findOwn(ctx, owner, ref); err != nil {
			return err
		}
		t.Public, t.Shared = public, public && (share || t.Shared)
		return ts.store.SetTemplatePublic(ctx, t.ID, t.Public, t.Shared)
	})
	return t, err
}

// Tag has tags mean the build that ref stands for: a build's ID, or a template's
// name and tag.
//
// Errors are those of FindTemplate. NotFound: there is no such build, or it is not ready.
// Invalid: a tag. Exhausted: there are too many.
func (ts *Templates) Tag(ctx context.Context, owner, ref string, tags []string) (sandpit.Template, error) {
	var t sandpit.Template
	err := ts.templates.withEvent(ctx, "tag template", owner, ref, func(ctx context.Context) (err error) {
		if t, err = ts.templates.findOwn(ctx, owner, ref); err != nil {
			return err
		}
		id, err := buildOf(t, ref)
		if err != nil {
			return err
		}
		for _, tag := range tags {
			if err := ts.store.SetTag(ctx, t.ID, tag, id, ts.clock.Now()); err != nil {
				return err
			}
		}
		t, err = ts.store.Template(ctx, t.ID)
		return err
	})
	return ts.templates.addCount(t), err
}

// Untag takes tags away from a template. A build without one is removed some time
// later. NotFound: it has no such tag. Otherwise as TagTemplate.
func (ts *Templates) Untag(ctx context.Context, owner, ref string, tags []string) error {
	return ts.templates.withEvent(ctx, "untag template", owner, ref, func(ctx context.Context) error {
		t, err := ts.templates.findOwn(ctx, owner, ref)
		for _, tag := range tags {
			if err == nil {
				err = ts.store.DeleteTag(ctx, t.ID, tag)
			}
		}
		return err
	})
}

// Delete removes a template. Its builds are given up, or removed as soon as no
// sandbox needs them: sandboxes that were made of it go on, also when they are stopped
// and started.
//
// Errors are those of FindTemplate; PermissionDenied also if it is another's.
func (ts *Templates) Delete(ctx context.Context, owner, ref string) error {
	return ts.templates.withEvent(ctx, "remove template", owner, ref, func(ctx context.Context) error {
		t, err := ts.templates.findOwn(ctx, owner, ref)
		if err != nil {
			return err
		}
		if err := ts.store.DeleteTemplate(ctx, t.ID); err != nil {
			return err
		}
		builds, err := ts.store.Builds(ctx, store.BuildFilter{Template: t.ID, Brief: true})
		if err != nil {
			return err
		}
		for _, b := range builds {
			ts.builds.cancelBuild(ctx, b.ID)
			if err := ts.builds.dropBuild(ctx, b); err != nil && !errors.Is(err, sandpit.Conflict) {
				ts.log.WarnContext(ctx, "a build that nobody needs is left till later", slog.String("build", string(b.ID)), slog.Any("error", err))
			}
		}
		return nil
	})
}
