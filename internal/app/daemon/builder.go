package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
	"github.com/sandpit-dev/sandpit/internal/build/template"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// builder builds the templates of a server.
type builder struct {
	images   *image.Store
	debian   *debian.Source
	npm      *npm.Source
	contexts *contexts
	secrets  []byte // keys digests of the values of secrets
}

var _ manager.TemplateBuilder = builder{}

// maxPackageBytes is how many bytes of packages one build may fetch.
const maxPackageBytes = 8 << 30

// newBuilder returns the builder of a server. Packages are bounded as images are.
func (s *service) newBuilder() builder {
	debianPackages, npmPackages := debianSource(s.cfg), npmSource(s.cfg)
	bounds := npm.Bounds{Kept: s.cfg.Image.CacheSize, Fetched: maxPackageBytes, Check: func() error {
		disk, err := s.disks.At(s.cfg.CacheDir)
		if err != nil {
			return err
		}
		return disk.Check()
	}}
	debianPackages.Bounds, npmPackages.Bounds = bounds, bounds
	return builder{s.images, debianPackages, npmPackages, s.contexts, s.secretsKey}
}

// builtinRecipes returns the templates that are part of the program, by name. One that
// cannot be read is left out; a test reads them all.
func builtinRecipes() map[string]sandpit.Recipe {
	recipes := make(map[string]sandpit.Recipe)
	for _, name := range template.Builtins() {
		if t, err := template.Builtin(name); err == nil {
			recipes[name] = t
		}
	}
	return recipes
}

// enforceableLimits implements manager.Options.Enforceable.
func (s *service) enforceableLimits(provider string, limits sandpit.Resources) sandpit.Resources {
	if p, err := findRegistration(s.registered, provider); err == nil && p.EnforceableLimits != nil {
		return p.EnforceableLimits(limits)
	}
	return limits
}

// templateName is what the image of a build is called.
func templateName(id sandpit.BuildID) sandpit.Image {
	return sandpit.Image(sandpit.TemplatePrefix + string(id))
}

// withLogin returns a context in which a build's login is known to its registry.
func withLogin(ctx context.Context, j manager.TemplateJob) (context.Context, error) {
	if j.Login == (manager.RegistryLogin{}) {
		return ctx, nil
	}
	return image.WithCredential(ctx, j.Recipe.From, image.Credential{User: j.Login.User, Password: j.Login.Password})
}

// PrepareTemplate implements manager.TemplateBuilder.
func (b builder) PrepareTemplate(ctx context.Context, j manager.TemplateJob) (func(), error) {
	if _, isDebian, err := debian.ParseRequest(string(j.Recipe.From)); isDebian || err != nil {
		return func() {}, err
	}
	ctx, err := withLogin(ctx, j)
	if err != nil {
		return nil, err
	}
	root, err := imagesFor(b.images, j.Owner, j.Trusted).Resolve(ctx, j.Recipe.From, fetchProgress(j.Progress, time.Now))
	if err != nil {
		return nil, err
	}
	return holdRoot(root).Release, nil
}

// BuildTemplate implements manager.TemplateBuilder.
func (b builder) BuildTemplate(ctx context.Context, j manager.TemplateJob) (int64, error) {
	ctx, err := withLogin(ctx, j)
	if err != nil {
		return 0, err
	}
	step := ""
	work := template.Builder{
		Provider: maker(j.Create), Images: b.images, Debian: b.debian, NPM: b.npm, Dir: j.Dir, Secrets: j.Secrets, Fresh: j.Fresh, Output: writer(j.Output),
		Progress: fetchProgress(j.Progress, time.Now), Prepare: j.Progress,
		Base: imagesFor(b.images, j.Owner, j.Trusted).Resolve, Owner: j.Owner, SecretsKey: b.secrets,
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

// fetchEvery is the time between two lines of a build's log about what it fetches.
const fetchEvery = 5 * time.Second

// fetchProgress returns a function that reports to hear, every few seconds, how much of a
// build's base was downloaded.
func fetchProgress(hear func(text string), now func() time.Time) image.Progress {
	var last time.Time
	return func(done, total int64) {
		if now().Sub(last) < fetchEvery && done != total {
			return
		}
		last = now()
		const mega = 1e6
		text := fmt.Sprintf("fetch the base: %.1f MB", float64(done)/mega)
		if total > 0 {
			text += fmt.Sprintf(" of %.1f MB", float64(total)/mega)
		}
		hear(text)
	}
}

// RemoveTemplate implements manager.TemplateBuilder. Files that came for a build that was
// never started go as well.
func (b builder) RemoveTemplate(ctx context.Context, id sandpit.BuildID) error {
	_, err := b.images.Remove(ctx, string(templateName(id)))
	if errors.Is(err, sandpit.NotFound) {
		err = nil
	}
	return errors.Join(err, b.contexts.dropUnused(id))
}

// maker creates the sandboxes of steps. The manager chooses their IDs.
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

// hasTemplate returns an error unless the client of a request may use a template of the
// cache. Errors are those of image.Store.Resolve.
func (s *service) hasTemplate(ctx context.Context, ref sandpit.Image) error {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return err
	}
	return s.cachedTemplate(ctx, p, ref)
}

// cachedTemplate is hasTemplate for a client.
func (s *service) cachedTemplate(ctx context.Context, client api.Principal, ref sandpit.Image) error {
	root, err := imagesFor(s.images, client.Owner, client.Admin).Resolve(ctx, ref, nil)
	if err != nil {
		return err
	}
	return root.File.Close()
}
