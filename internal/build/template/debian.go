package template

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// resolveBase returns the base image of a template.
func (b *Builder) resolveBase(ctx context.Context, t Template) (image.Root, error) {
	request, isDebian, err := debian.ParseRequest(string(t.From))
	if err != nil || !isDebian {
		if err == nil {
			return b.resolveImage(ctx, t.From)
		}
		return image.Root{}, err
	}
	if b.Debian == nil {
		return image.Root{}, sandpit.Errorf(sandpit.Unsupported, "Debian packages are not supported here")
	}
	e, err := b.buildDebian(ctx, request, t.Build.Resources)
	if err != nil {
		return image.Root{}, err
	}
	return b.Images.Resolve(ctx, sandpit.Image(e.ID), nil)
}

// resolveImage returns the image that a recipe names.
func (b *Builder) resolveImage(ctx context.Context, ref sandpit.Image) (image.Root, error) {
	if b.Base != nil {
		return b.Base(ctx, ref, b.Progress)
	}
	return b.Images.Resolve(ctx, ref, b.Progress)
}

// buildDebian builds an image of Debian's packages, once for the same packages and limits. All
// owners share it: the packages are signed and the plan has their digests, and the command
// is built in and runs without a network, secrets or other input of the first owner. The
// limits are part of the key because an owner chooses them: with too little memory or disk a
// script of a package could fail without the build detecting it.
func (b *Builder) buildDebian(ctx context.Context, r debian.Request, limits sandpit.Resources) (image.Entry, error) {
	b.reportPrepare("choose packages of Debian " + r.Suite)
	plan, err := b.Debian.Plan(ctx, r, b.Fresh, debian.Progress(b.Progress))
	if err != nil {
		return image.Entry{}, err
	}
	root, err := b.Images.Extend(ctx, image.Extension{
		Base: image.Scratch, Key: "packages " + plan.Digest(), Source: "packages of Debian " + r.Suite,
		Layer: func(ctx context.Context) (io.ReadCloser, error) {
			b.reportPrepare("fetch packages of Debian " + r.Suite)
			return b.Debian.Root(ctx, plan, debian.Progress(b.Progress))
		},
	}, nil)
	if err != nil {
		return image.Entry{}, err
	}
	w := &build{Builder: b, template: Template{Build: Build{Resources: limits}}, image: sandpit.Image(root.ID), inUse: io.NopCloser(nil)}
	defer func() { _ = w.inUse.Close() }() // only read
	if err := w.useImage(ctx, root); err != nil {
		return image.Entry{}, err
	}
	b.reportPrepare("install packages of Debian " + r.Suite)
	install := Step{Run: debian.Configure(plan), RunUser: "root"}
	if err := w.runCommandFor(ctx, -1, install, ""); err != nil {
		return image.Entry{}, err
	}
	return image.Entry{ID: string(w.image)}, nil
}

func (b *Builder) reportPrepare(what string) {
	if b.Prepare != nil {
		b.Prepare(what)
	}
}
