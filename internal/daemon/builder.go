package daemon

import (
	"context"
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/debian"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/manager"
	"github.com/sandpit-dev/sandpit/internal/npm"
	"github.com/sandpit-dev/sandpit/internal/template"
)

// builder builds the templates of a server.
type builder struct {
	images   *image.Store
	debian   *debian.Source
	npm      *npm.Source
	contexts *contexts
}

var _ manager.TemplateBuilder = builder{}

// templateName is what the image of a build is called.
func templateName(id sandpit.BuildID) sandpit.Image {
	return sandpit.Image(sandpit.TemplatePrefix + string(id))
}

// BuildTemplate implements manager.TemplateBuilder.
func (b builder) BuildTemplate(ctx context.Context, j manager.TemplateJob) (int64, error) {
	if j.Login != (manager.RegistryLogin{}) {
		var err error
		ctx, err = image.WithCredential(ctx, j.Recipe.From, image.Credential{User: j.Login.User, Password: j.Login.Password})
		if err != nil {
			return 0, err
		}
	}
	step := ""
	work := template.Builder{
		Provider: maker(j.Create), Images: b.images, Debian: b.debian, NPM: b.npm, Dir: j.Dir, Secrets: j.Secrets, Fresh: j.Fresh, Output: writer(j.Output),
		Begin: func(number, total int, s template.Step) {
			step = s.String()
			j.Begin(number, total, step)
		},
	}
	e, err := work.Build(ctx, j.Recipe)
	if err != nil && step != "" {
		return 0, &manager.StepError{Step: step, Err: err}
	}
	if err != nil {
		return 0, err
	}
	e, err = b.images.SetTemplate(ctx, templateName(j.Build), e.ID)
	return e.Size, err
}

// RemoveTemplate implements manager.TemplateBuilder. Files that came for a build that was
// never started go as well.
func (b builder) RemoveTemplate(ctx context.Context, id sandpit.BuildID) error {
	_, err := b.images.Remove(ctx, string(templateName(id)))
	if errors.Is(err, sandpit.NotFound) {
		err = nil
	}
	return errors.Join(err, b.contexts.drop(id))
}

// maker makes the sandboxes of steps. Who answers for them gives them their IDs.
type maker func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error)

// Create implements template.Maker.
func (m maker) Create(ctx context.Context, _ sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	return m(ctx, spec)
}

// writer is a function that takes output.
type writer func(p []byte)

var _ io.Writer = writer(nil)

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// hasTemplate says whether the cache has the image of a template. Errors as with image.Store.Resolve.
func (s *service) hasTemplate(ctx context.Context, ref sandpit.Image) error {
	_, err := s.images.Template(ctx, ref)
	return err
}
