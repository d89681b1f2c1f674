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
	// Name is the name of the template, which is created if it does not exist.
	Name string
	// Tags are set to the build when it is ready. Default: sandpit.DefaultTag.
	Tags []string
	// Resources are the limits of the template's sandboxes, if the recipe has none.
	Resources sandpit.Resources
}

// Create creates a build of a template, and the template if the name is new. The build
// waits for Builds.Start; if that is not called within an hour, it is removed.
//
// Invalid: the name or a tag. Exhausted: the owner's limit is reached. Unsupported: templates
// cannot be built here.
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
		t, err = ts.store.Templates().EnsureTemplate(ctx, sandpit.Template{
			ID: sandpit.NewTemplateID(), Owner: r.Owner, Name: r.Name, CreatedAt: now, UpdatedAt: now,
		}, ts.o.MaxTemplates)
		if err != nil {
			return err
		}
		b = store.TemplateBuild{Owner: r.Owner, TemplateBuild: sandpit.TemplateBuild{
			ID: sandpit.NewBuildID(), Template: t.ID, Status: sandpit.BuildWaiting, Tags: r.Tags, Resources: r.Resources, CreatedAt: now,
		}}
		return ts.store.Templates().InsertBuild(ctx, b, ts.templates.newLimits())
	})
	return ts.templates.addCount(t), b.TemplateBuild, err
}

// Get returns the template that an owner means by a sandpit.TemplateRef. A name without an owner
// means the owner's own template, or one that an administrator shares, or one that is part of the
// program and was built, see Builtins.Prepare. A public template of another owner is found by its
// full name, or by an ID. The owner "" has no templates: its names mean what they mean to the
// administrator.
//
// NotFound: no such template, or it is another owner's and not public.
func (ts *Templates) Get(ctx context.Context, owner, ref string) (sandpit.Template, error) {
	return ts.templates.findTemplate(ctx, owner, ref)
}

// List returns templates in the order of their IDs.
func (ts *Templates) List(ctx context.Context, f store.TemplateFilter) ([]sandpit.Template, error) {
	list, err := ts.store.Templates().ListTemplates(ctx, f)
	for i, t := range list {
		list[i] = ts.templates.addCount(t)
	}
	return list, err
}

// SetPublic sets whether every owner may create sandboxes from a template, as OWNER/NAME. With
// share, which is for administrators' own templates, the name alone means it as well while it is
// public.
//
// Errors are those of Get. PermissionDenied: it is another owner's.
func (ts *Templates) SetPublic(ctx context.Context, owner, ref string, public, share bool) (sandpit.Template, error) {
	var t sandpit.Template
	err := ts.templates.withEvent(ctx, "publish template", owner, ref, func(ctx context.Context) (err error) {
		if t, err = ts.templates.findOwn(ctx, owner, ref); err != nil {
			return err
		}
		t.Public, t.Shared = public, public && (share || t.Shared)
		return ts.store.Templates().SetTemplatePublic(ctx, t.ID, t.Public, t.Shared)
	})
	return t, err
}

// Tag sets tags to the build that ref names: a build's ID, or a template's name and tag.
//
// Errors are those of Get. NotFound: there is no such build, or it is not ready. Invalid: a tag.
// Exhausted: there are too many.
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
			if err := ts.store.Templates().SetTag(ctx, t.ID, tag, id, ts.clock.Now()); err != nil {
				return err
			}
		}
		t, err = ts.store.Templates().Template(ctx, t.ID)
		return err
	})
	return ts.templates.addCount(t), err
}

// Untag removes tags from a template. A build without a tag is removed some time later. NotFound:
// it has no such tag. Otherwise as Tag.
func (ts *Templates) Untag(ctx context.Context, owner, ref string, tags []string) error {
	return ts.templates.withEvent(ctx, "untag template", owner, ref, func(ctx context.Context) error {
		t, err := ts.templates.findOwn(ctx, owner, ref)
		for _, tag := range tags {
			if err == nil {
				err = ts.store.Templates().DeleteTag(ctx, t.ID, tag)
			}
		}
		return err
	})
}

// Delete removes a template. Its running builds are canceled, and the others are removed when no
// sandbox needs them: sandboxes that were created from the template continue, also after a stop and
// start.
//
// Errors are those of Get; PermissionDenied also if it is another owner's.
func (ts *Templates) Delete(ctx context.Context, owner, ref string) error {
	return ts.templates.withEvent(ctx, "remove template", owner, ref, func(ctx context.Context) error {
		t, err := ts.templates.findOwn(ctx, owner, ref)
		if err != nil {
			return err
		}
		if err := ts.store.Templates().DeleteTemplate(ctx, t.ID); err != nil {
			return err
		}
		builds, err := ts.store.Templates().ListBuilds(ctx, store.BuildFilter{Template: t.ID, Brief: true})
		if err != nil {
			return err
		}
		for _, b := range builds {
			ts.builds.cancelBuild(ctx, b.ID)
			if err := ts.builds.dropBuild(ctx, b); err != nil && !errors.Is(err, sandpit.Conflict) {
				ts.log.WarnContext(ctx, "manager: build of a deleted template not removed; retried later", slog.String("build", string(b.ID)), slog.Any("error", err))
			}
		}
		return nil
	})
}
