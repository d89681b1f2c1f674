package e2b

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// baseTemplate is the template of E2B's clients that name none.
const baseTemplate = "base"

// defaultBuildWait is how long a request waits for the first build of a built-in template. It
// is less than the minute after which E2B's clients time out, so that they get the reason.
const defaultBuildWait = 45 * time.Second

// templateOrigin is what a template name stands for. One of saved, template and image is set;
// the image "" is the default image.
type templateOrigin struct {
	saved *sandpit.Snapshot
	// template is a reference without sandpit.TemplatePrefix. found describes the template if
	// the server has it, and is zero if the image cache has it.
	template string
	found    sandpit.Template
	// configured says that the configuration names image, not the client.
	configured bool
	image      sandpit.Image
	// builtin is the name of a built-in template, which may not be built yet.
	builtin string
}

// templateResolver finds what clients mean by the names of templates.
type templateResolver struct {
	manager *manager.Manager
	// images, cached and patience are Options.Templates, Cached and BuildPatience.
	images   map[string]sandpit.Image
	cached   func(ctx context.Context, who api.Principal, ref sandpit.Image) error
	patience time.Duration
	log      *slog.Logger
}

// resolveName returns what a client means by the name of a template, in this order: a snapshot
// or template of the client's owner; a public template; an image that the configuration gives
// the name; a template that the administrator has built in the image cache; a built-in
// template; and for "base", the default image.
//
// NotFound: no such template, or it belongs to another owner and is not public.
func (t *templateResolver) resolveName(ctx context.Context, client api.Principal, name string) (templateOrigin, error) {
	saved, err := t.findSnapshot(ctx, client, name)
	if err == nil {
		return templateOrigin{saved: &saved}, nil
	}
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return templateOrigin{}, err
	}
	ref := templateRef(client, name)
	found, err := t.manager.Templates().Get(ctx, client.Owner, ref)
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
		return templateOrigin{}, err
	}
	if err == nil && !isBuiltin(found, ref) {
		return templateOrigin{template: ref, found: found}, nil
	}
	if image, ok := t.configuredImage(name); ok {
		return templateOrigin{image: image, configured: true}, nil
	}
	builtin := t.builtinName(ref)
	if !t.startsProgram(builtin) && t.isCached(ctx, client, ref) {
		return templateOrigin{template: ref}, nil
	}
	if builtin != "" {
		return templateOrigin{template: ref, builtin: builtin}, nil
	}
	if isDefault(name) {
		return templateOrigin{configured: true}, nil
	}
	return templateOrigin{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "template %.100q not found", name),
		"available: "+strings.Join(t.publicNames(), ", ")+"; build another one: sandpit template build -t NAME, or add an image to e2b.templates in the "+
			"server's configuration; public templates of other owners are called OWNER/NAME")
}

// isBuiltin reports whether a template that was found by a name is a built-in one. A name with
// an owner means that owner's template in any case.
func isBuiltin(t sandpit.Template, ref string) bool {
	parsed := sandpit.ParseTemplateRef(ref)
	return t.Owner == manager.BuiltinOwner && parsed.Owner == "" && !parsed.IsID()
}

// isDefault reports whether a name means the default image unless something else has the name.
func isDefault(name string) bool {
	name, tag, _ := strings.Cut(name, ":")
	return name == baseTemplate && isUsualTag(tag)
}

func isUsualTag(tag string) bool { return tag == "" || tag == tagDefault || tag == tagLatest }

// builtinName returns the built-in template that a reference means, or "".
func (t *templateResolver) builtinName(ref string) string {
	parsed := sandpit.ParseTemplateRef(ref)
	if parsed.Owner != "" || !isUsualTag(parsed.Tag) || !slices.Contains(t.manager.Builtins().Names(), parsed.Name) {
		return ""
	}
	return parsed.Name
}

// startsProgram reports whether a built-in template has a running program. Only a build of the
// server has that.
func (t *templateResolver) startsProgram(builtin string) bool {
	return builtin != "" && t.manager.Builtins().StartsProgram(builtin)
}

// awaitBuiltin returns the origin when it can be used. The first request for a built-in
// template starts its build, and all clients wait for the same build. If "base" cannot be
// built, it is the default image.
//
// Unavailable: the template is still being built, or cannot be built here.
func (t *templateResolver) awaitBuiltin(ctx context.Context, client api.Principal, o templateOrigin) (templateOrigin, error) {
	if o.builtin == "" {
		return o, nil
	}
	b, err := t.manager.Builtins().Await(ctx, o.builtin, t.patience)
	switch {
	case err == nil && b.Status == sandpit.BuildReady:
		o.template = o.builtin
		return o, nil
	case err == nil && b.Status == sandpit.BuildBuilding:
		return o, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "template %s is being built, once for all clients: %s, %v so far",
				o.builtin, cmp.Or(b.Progress, "waiting for its turn"), time.Since(b.Begun).Round(time.Second)),
			"try again in a minute, or wait for it: sandpit env e2b")
	case err == nil:
		err = sandpit.Errorf(sandpit.Unavailable, "%s", b.Reason)
	}
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	t.log.WarnContext(ctx, "e2b: built-in template not available", slog.String("template", o.builtin), slog.Any("error", err))
	if o.builtin == baseTemplate {
		return templateOrigin{configured: true}, nil
	}
	failed := fmt.Sprintf("the build of template %s failed", o.builtin)
	if client.Admin {
		failed += ": " + err.Error()
	}
	return o, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s", failed), "the server's log says why; sandpit template build builtin:"+o.builtin+" tries it with all of its output")
}

// resolveImage returns what a sandbox of a template starts from: a snapshot, or an image and
// whether the configuration names the image.
//
// Errors are those of resolveName and awaitBuiltin.
func (t *templateResolver) resolveImage(ctx context.Context, client api.Principal, name string) (saved *sandpit.Snapshot, image sandpit.Image, configured bool, err error) {
	o, err := t.resolveName(ctx, client, name)
	if err == nil {
		o, err = t.awaitBuiltin(ctx, client, o)
	}
	switch {
	case err != nil:
		return nil, "", false, err
	case o.saved != nil:
		return o.saved, sandpit.SnapshotImage(o.saved.ID), false, nil
	case o.template != "":
		return nil, sandpit.Image(sandpit.TemplatePrefix + o.template), false, nil
	}
	return nil, o.image, o.configured, nil
}

// configuredImage returns the image that the configuration gives the name of a template.
func (t *templateResolver) configuredImage(template string) (sandpit.Image, bool) {
	name, tag, _ := strings.Cut(template, ":")
	image, ok := t.images[name]
	return image, ok && isUsualTag(tag)
}

// publicNames returns the names of templates that all clients can use: those of the
// configuration, the built-in ones and "base".
func (t *templateResolver) publicNames() []string {
	all := append(slices.Collect(maps.Keys(t.images)), t.manager.Builtins().Names()...)
	all = append(all, baseTemplate)
	slices.Sort(all)
	return slices.Compact(all)
}

// isCached reports whether a name means a template of the image cache, which the administrator
// has built without the server.
func (t *templateResolver) isCached(ctx context.Context, client api.Principal, name string) bool {
	if ref := sandpit.ParseTemplateRef(name); ref.Owner != "" || ref.Tag != "" || ref.IsID() || t.cached == nil {
		return false
	}
	return t.cached(ctx, client, sandpit.Image(sandpit.TemplatePrefix+name)) == nil
}

// findSnapshot returns a snapshot of the client's owner. NotFound.
func (t *templateResolver) findSnapshot(ctx context.Context, client api.Principal, name string) (sandpit.Snapshot, error) {
	return t.manager.Snapshots().Get(ctx, client.Owner, snapshotName(client, name))
}

// ownTemplate returns a template of the client's owner. NotFound: no such template, or it
// belongs to another owner.
func (t *templateResolver) ownTemplate(c *call, ref string) (sandpit.Template, error) {
	found, err := t.manager.Templates().Get(c.r.Context(), c.client.Owner, templateRef(c.client, ref))
	if sandpit.CodeOf(err) == sandpit.NotFound || err == nil && found.Owner != c.client.Owner {
		return found, sandpit.Errorf(sandpit.NotFound, "template %.100q not found", ref)
	}
	return found, err
}
