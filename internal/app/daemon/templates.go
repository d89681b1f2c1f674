package daemon

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

// maxTemplateFile bounds a template file, in bytes.
const maxTemplateFile = 1 << 20

// ReadTemplate reads a template file, or the one in a directory: sandpit.toml, else
// Dockerfile; "builtin:NAME" is a built-in template. It returns the directory that files
// are copied from, which is "" for a built-in template.
//
// NotFound. Other errors are those of template.Parse and ParseDockerfile.
func ReadTemplate(path string, args map[string]string) (t template.Template, dir string, err error) {
	if name, ok := strings.CutPrefix(path, template.BuiltinPrefix); ok {
		t, err = template.Builtin(name)
		return t, "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return t, "", err
	}
	dir = filepath.Dir(path)
	if info.IsDir() {
		dir = path
		if path, err = templateIn(dir); err != nil {
			return t, "", err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return t, "", err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxTemplateFile+1))
	if err != nil {
		return t, "", err
	}
	if strings.HasSuffix(path, ".toml") {
		t, err = parseIn(dir, data)
	} else {
		t, err = template.ParseDockerfile(data, args)
	}
	if err != nil {
		return t, "", sandpit.Errorf(sandpit.CodeOf(err), "%s: %w", path, err)
	}
	if from := string(t.From); image.IsPath(from) && !filepath.IsAbs(from) {
		if t.From, err = absoluteImage(dir, from); err != nil {
			return t, "", err
		}
	}
	return t, dir, nil
}

// parseIn reads a template file, and what it needs of its directory.
func parseIn(dir string, data []byte) (template.Template, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return template.Template{}, err
	}
	defer func() { _ = root.Close() }() // only read
	return template.Parse(data, root.FS())
}

func absoluteImage(dir, path string) (sandpit.Image, error) {
	abs, err := filepath.Abs(filepath.Join(dir, path))
	return sandpit.Image(abs), err
}

func templateIn(dir string) (string, error) {
	for _, name := range []string{template.FileName, "Dockerfile"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", sandpit.Errorf(sandpit.NotFound, "%s has neither %s nor Dockerfile", dir, template.FileName)
}

// TemplateBuild says how a template is built.
type TemplateBuild struct {
	// Name is without the prefix. Default: the template's own.
	Name string
	// Dir is where files are copied from.
	Dir string
	// Secrets are values of those that the template names.
	Secrets map[string]string
	// Fresh does every step again.
	Fresh bool
	// Output takes what steps put out.
	Output io.Writer
	// Prepare reports the preparation, Begin and Ran the steps; see template.Builder.
	Prepare func(what string)
	Begin   func(number, total int, s template.Step)
	Ran     func(number int, took time.Duration)
}

// BuildTemplate builds a template and gives the image its name.
//
// Invalid: it has no name. Unsupported: not with this provider. Otherwise as
// template.Builder.Build.
func (l *Local) BuildTemplate(ctx context.Context, t template.Template, o TemplateBuild) (image.Entry, error) {
	if l.images == nil {
		return image.Entry{}, sandpit.Errorf(sandpit.Unsupported, "templates are built with the provider %s only", findBuilding(registrations()))
	}
	name := o.Name
	if name == "" {
		name = t.Name
	}
	if name == "" {
		return image.Entry{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the template has no name"), "add -t NAME")
	}
	ref := sandpit.Image(sandpit.TemplatePrefix + strings.TrimPrefix(name, sandpit.TemplatePrefix))
	if err := image.CheckTemplate(ref); err != nil {
		return image.Entry{}, err
	}
	chosen := t.Build.Resources == (sandpit.Resources{})
	if chosen {
		t.Build.Resources = explicitLimits(l.cfg)
		if err := l.checkLimits(t.Build.Resources); err != nil { // before anything is fetched
			return image.Entry{}, err
		}
	}
	key, err := loadSecretsKey(l.cfg)
	if err != nil {
		return image.Entry{}, err
	}
	bound, err := boundNetwork(l.cfg)
	if err != nil {
		return image.Entry{}, err
	}
	step := func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error) {
		var err error
		if enforceable := l.registered.EnforceableLimits; !chosen && enforceable != nil { // see manager.Options.Enforceable
			spec.Resources = enforceable(spec.Resources)
		}
		if spec.Network, err = bound(spec.Network, true); err != nil {
			return nil, err
		}
		return l.provider.Create(ctx, sandpit.NewID(), spec)
	}
	b := template.Builder{
		SecretsKey: key,
		Provider:   maker(step), Images: l.images, Dir: o.Dir, Secrets: o.Secrets, Fresh: o.Fresh, Output: o.Output,
		Prepare: o.Prepare, Begin: o.Begin, Ran: o.Ran, Progress: l.hear.Progress, Debian: debianSource(l.cfg), NPM: npmSource(l.cfg),
	}
	e, err := b.Build(ctx, t)
	if err != nil {
		return image.Entry{}, err
	}
	return l.images.SetTemplate(ctx, ref, e.ID)
}

// ListTemplates returns the templates of the cache, by name.
func ListTemplates(cfg config.Config) ([]image.Entry, error) {
	store, err := OpenImages(cfg)
	if err != nil {
		return nil, err
	}
	list, err := store.List()
	if err != nil {
		return nil, err
	}
	templates := []image.Entry{}
	for _, e := range list {
		name, is := strings.CutPrefix(e.Name, sandpit.TemplatePrefix)
		if is && sandpit.BuildID(name).Validate() != nil { // builds are a server's
			templates = append(templates, e)
		}
	}
	return templates, nil
}
