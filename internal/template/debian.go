package template

import (
	"context"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/debian"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// base returns the image that a template starts from.
func (b *Builder) base(ctx context.Context, t Template) (image.Root, error) {
	request, isDebian, err := debian.ParseRequest(string(t.From))
	if err != nil || !isDebian {
		if err == nil {
			return b.Images.Resolve(ctx, t.From, b.Progress)
		}
		return image.Root{}, err
	}
	if b.Debian == nil {
		return image.Root{}, sandpit.Errorf(sandpit.Unsupported, "there is no mirror of Debian here")
	}
	e, err := b.bootstrap(ctx, request, t.Build.Resources)
	if err != nil {
		return image.Root{}, err
	}
	return b.Images.Resolve(ctx, sandpit.Image(e.ID), nil)
}

// bootstrap makes an image of Debian's packages. It is made once for the same packages.
func (b *Builder) bootstrap(ctx context.Context, r debian.Request, limits sandpit.Resources) (image.Entry, error) {
	plan, err := b.Debian.Plan(ctx, r, b.Fresh, debian.Progress(b.Progress))
	if err != nil {
		return image.Entry{}, err
	}
	root, err := b.Images.Extend(ctx, image.Extension{
		Base: image.Scratch, Key: "packages " + plan.Digest(), Source: "packages of Debian " + r.Suite,
		Layer: func(ctx context.Context) (io.ReadCloser, error) {
			return b.Debian.Root(ctx, plan, debian.Progress(b.Progress))
		},
	}, nil)
	if err != nil {
		return image.Entry{}, err
	}
	w := &work{Builder: b, template: Template{Build: Build{Resources: limits}}, image: sandpit.Image(root.ID), hold: io.NopCloser(nil)}
	defer func() { _ = w.hold.Close() }() // only read
	if err := w.next(ctx, root); err != nil {
		return image.Entry{}, err
	}
	install := Step{Run: debian.Configure(plan), RunUser: "root"}
	if err := w.run(ctx, -1, install); err != nil {
		return image.Entry{}, err
	}
	return image.Entry{ID: string(w.image)}, nil
}
