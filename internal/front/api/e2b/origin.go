package e2b

import (
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

// baseTemplate is the template that E2B's clients use when they name none.
const baseTemplate = "base"

// buildPatience is how long a request waits for the first build of a built-in template:
// less than the minute after which E2B's clients give up, so that they hear why.
const buildPatience = 45 * time.Second

// origin is what a template of a client stands for. One of saved, template and image is
// set; the image "" is the default one.
type origin struct {
	saved *sandpit.Snapshot
	// template is what comes after sandpit.TemplatePrefix. found describes it, if the server
	// keeps it, and not the image cache.
	template string
	found    sandpit.Template
	// configured says that the configuration names image, and not the client.
	configured bool
	image      sandpit.Image
	// builtin names a template that is part of the program, which may not be built yet.
	builtin string
}

// resolve returns what a client means by the name of a template, in this order: its owner's
// snapshot or template; a public template; an image that the configuration gives the name;
// a template that the administrator has built into the image cache; a template that is part
// of the program; and for "base", the default image.
//
// NotFound: there is none, or it is another owner's and not public.
func (s *Server) resolve(ctx context.Context, who api.Principal, name string) (origin, error) {
	saved, err := s.snapshot(ctx, who, name)
	if err == nil {
		return origin{saved: &saved}, nil
	}
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return origin{}, err
	}
	ref := templateRef(who, name)
	found, err := s.o.Manager.Templates().Get(ctx, who.Owner, ref)
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
		return origin{}, err
	}
	if err == nil && !isBuiltin(found, ref) {
		return origin{template: ref, found: found}, nil
	}
	if image, ok := s.configured(name); ok {
		return origin{image: image, configured: true}, nil
	}
	builtin := s.builtinName(ref)
	if !s.startsProgram(builtin) && s.isCached(ctx, who, ref) {
		return origin{template: ref}, nil
	}
	if builtin != "" {
		return origin{template: ref, builtin: builtin}, nil
	}
	if isDefault(name) {
		return origin{configured: true}, nil
	}
	return origin{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "template %.100q not found", name),
		"there are "+strings.Join(s.names(), ", ")+"; build another one: sandpit template build -t NAME, or add an image to e2b.templates in the "+
			"server's configuration; public templates of other owners are called OWNER/NAME")
}

// isBuiltin reports whether a template that was found by a name is one of the program's.
// One that is named with its owner is meant whatever else there is.
func isBuiltin(t sandpit.Template, ref string) bool {
	parsed := sandpit.ParseTemplateRef(ref)
	return t.Owner == manager.BuiltinOwner && parsed.Owner == "" && !parsed.IsID()
}

// isDefault reports whether a name means the default image if nothing else has the name.
func isDefault(name string) bool {
	name, tag, _ := strings.Cut(name, ":")
	return name == baseTemplate && isUsualTag(tag)
}

func isUsualTag(tag string) bool { return tag == "" || tag == tagDefault || tag == tagLatest }

// builtinName returns the built-in template that a reference means, or "".
func (s *Server) builtinName(ref string) string {
	parsed := sandpit.ParseTemplateRef(ref)
	if parsed.Owner != "" || !isUsualTag(parsed.Tag) || !slices.Contains(s.o.Manager.Builtins().Names(), parsed.Name) {
		return ""
	}
	return parsed.Name
}

// startsProgram reports whether a built-in template has a program running, which only a
// server's build of it has.
func (s *Server) startsProgram(builtin string) bool {
	return builtin != "" && s.o.Manager.Builtins().StartsProgram(builtin)
}

// ready returns the origin as soon as it can be used. A built-in template is built when it is
// first requested, once for all clients that wait; where there is none, "base" is the
// default image.
//
// Unavailable: it is still being built, or cannot be built here.
func (s *Server) ready(ctx context.Context, who api.Principal, o origin) (origin, error) {
	if o.builtin == "" {
		return o, nil
	}
	b, err := s.o.Manager.Builtins().Await(ctx, o.builtin, s.o.BuildPatience)
	switch {
	case err == nil && b.Status == sandpit.BuildReady:
		o.template = o.builtin
		return o, nil
	case err == nil && b.Status == sandpit.BuildBuilding:
		return o, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "template %s is being built, once for all who use it: %s, %v so far",
				o.builtin, orElse(b.Progress, "it waits for its turn"), time.Since(b.Begun).Round(time.Second)),
			"try again in a minute, or wait for it: sandpit env e2b")
	case err == nil:
		err = sandpit.Errorf(sandpit.Unavailable, "%s", b.Reason)
	}
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	s.o.Log.WarnContext(ctx, "e2b: built-in template not available", slog.String("template", o.builtin), slog.Any("error", err))
	if o.builtin == baseTemplate {
		return origin{configured: true}, nil
	}
	failed := fmt.Sprintf("the build of template %s failed", o.builtin)
	if who.Admin {
		failed += ": " + err.Error()
	}
	return o, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s", failed), "the server's log says why; sandpit template build builtin:"+o.builtin+" tries it with all of its output")
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// origin returns what a sandbox of a template begins as: a snapshot, or an image, and
// whether it is the configuration that names the image.
//
// Errors are those of resolve and ready.
func (s *Server) origin(ctx context.Context, who api.Principal, name string) (saved *sandpit.Snapshot, image sandpit.Image, configured bool, err error) {
	o, err := s.resolve(ctx, who, name)
	if err == nil {
		o, err = s.ready(ctx, who, o)
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

// configured returns the image that the configuration gives the name of a template.
func (s *Server) configured(template string) (sandpit.Image, bool) {
	name, tag, _ := strings.Cut(template, ":")
	image, ok := s.o.Templates[name]
	return image, ok && isUsualTag(tag)
}

// names returns the names of templates that every client finds: those of the configuration
// and of the program, and "base".
func (s *Server) names() []string {
	all := append(slices.Collect(maps.Keys(s.o.Templates)), s.o.Manager.Builtins().Names()...)
	all = append(all, baseTemplate)
	slices.Sort(all)
	return slices.Compact(all)
}
