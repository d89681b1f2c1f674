package template

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// Builder builds templates. Its fields must not change during a build. Builds may run
// concurrently.
type Builder struct {
	// Provider creates the sandboxes, which must be LayerReaders.
	Provider Maker
	Images   *image.Store
	// Base resolves the base image of a template, unless it is built from Debian's packages.
	// Default: Images.Resolve, which has the administrator's rights.
	Base func(ctx context.Context, ref sandpit.Image, p image.Progress) (image.Root, error)
	// Owner owns the results of steps: builds of other owners do not use them, and they
	// count against the owner's share of the cache. Default: the administrator.
	Owner string
	// SecretsKey is the key for digests of secrets, which detect a changed value. Default: steps
	// with secrets run in every build.
	SecretsKey []byte
	// Debian is the source of packages for images "apt:…". Default: they are not supported.
	Debian *debian.Source
	// NPM is the source of npm packages. Default: they are not supported.
	NPM *npm.Source
	// Dir is the directory with the files for Copy. Default: there are no files.
	Dir string
	// Secrets are the values for Step.Secrets. Only the command of that step receives them.
	Secrets map[string]string
	// Fresh runs every step again. Default: steps with a result in the cache are skipped.
	Fresh bool
	// Output receives the output of steps without secrets. Default: it is discarded.
	Output io.Writer
	// Begin, if set, is called before each step.
	Begin func(number, total int, s Step)
	// Ran, if set, is called after a step whose result was not in the cache.
	Ran func(number int, took time.Duration)
	// Progress, if set, reports the fetch of the base.
	Progress image.Progress
	// Prepare, if set, is called with each part of preparing the base.
	Prepare func(what string)
}

// Maker creates sandboxes, as a sandpit.Provider does.
type Maker interface {
	Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error)
}

const (
	// buildDisk is the default for how many bytes a step may write.
	buildDisk    = 10 << 30
	cleanTimeout = 30 * time.Second
)

// Build returns the image of a template, as an entry without a name. Steps with a result in the
// cache, from the same base and with the same files, are skipped. If the build fails or ctx
// ends, it undoes the current step and keeps the results of earlier ones.
//
// Invalid: the template, or a step whose command fails. NotFound: a secret is not in Secrets,
// or a file is missing. PermissionDenied: a step has written a secret to a file. Unsupported:
// the provider's sandboxes cannot return their changes. Otherwise errors of creating a
// sandbox.
func (b *Builder) Build(ctx context.Context, t Template) (image.Entry, error) {
	if err := t.Validate(); err != nil {
		return image.Entry{}, err
	}
	for _, name := range t.Secrets() {
		if b.Secrets[name] == "" {
			return image.Entry{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the template requires the secret %s", name), "--secret "+name)
		}
	}
	base, err := b.resolveBase(ctx, t)
	if err != nil {
		return image.Entry{}, err
	}
	w := &build{Builder: b, template: t, config: base.Config, image: t.From, inUse: base.File}
	if base.ID != "" { // the name may mean another image later
		w.image = sandpit.Image(base.ID)
	}
	defer func() { _ = w.inUse.Close() }() // only read
	for i, s := range t.Steps {
		if b.Begin != nil {
			b.Begin(i+1, len(t.Steps), s)
		}
		if err := w.runStep(ctx, i, s); err != nil {
			return image.Entry{}, fmt.Errorf("%s: %w", s.Where(i), err)
		}
	}
	return w.finishImage(ctx)
}

// build is the state of one build.
type build struct {
	*Builder
	template Template
	config   image.Config
	image    sandpit.Image
	inUse    io.Closer // keeps the image from being removed while it is open
}

func (w *build) runStep(ctx context.Context, i int, s Step) error {
	w.config = applyStep(s, w.config)
	switch {
	case len(s.Run) > 0:
		return w.runCommand(ctx, i, s)
	case s.Copy != nil:
		return w.copyFiles(ctx, i, s)
	case s.NPM != nil:
		return w.installNPM(ctx, i, s)
	}
	return nil
}

// installNPM adds npm packages, without a sandbox. Owners share the results, because the lock file
// determines them completely.
func (w *build) installNPM(ctx context.Context, i int, s Step) error {
	if w.NPM == nil {
		return sandpit.Errorf(sandpit.Unsupported, "npm packages are not supported here")
	}
	lock, err := npm.ParseLock([]byte(s.NPM.Lock))
	if err != nil {
		return err
	}
	return w.extendImage(ctx, i, s.Fresh, "npm "+lock.Digest()+" "+s.NPM.To, func(ctx context.Context) (io.ReadCloser, error) {
		return w.NPM.Tree(ctx, lock, s.NPM.To)
	})
}

// copyFiles adds files, without a sandbox.
func (w *build) copyFiles(ctx context.Context, i int, s Step) error {
	if w.Dir == "" {
		return sandpit.Errorf(sandpit.Invalid, "copy: no directory with files is given")
	}
	from, err := openSource(w.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = from.root.Close() }() // only read
	layer, err := from.packLayer(ctx, *s.Copy, w.config.WorkDir)
	if err != nil {
		return err
	}
	defer func() { _ = layer.Close() }() // only read, and maybe closed already
	return w.extendImage(ctx, i, s.Fresh, "copy "+layer.digest+w.ownerSuffix(), func(context.Context) (io.ReadCloser, error) { return layer.File, nil })
}

// ownerSuffix separates the copies of one owner from those of others.
func (w *build) ownerSuffix() string {
	if w.Owner == "" {
		return ""
	}
	return " of " + w.Owner
}

// runKey is everything that determines the result of a command.
type runKey struct {
	Owner         string
	Run           []string
	Secrets       map[string]string // keyed digests of values
	Env           map[string]string
	RunEnv        map[string]string
	User, WorkDir string
	Network       sandpit.NetworkPolicy
	Resources     sandpit.Resources
}

func (w *build) runKey(s Step, spec sandpit.Spec, owner string) (string, error) {
	text, err := json.Marshal(runKey{
		Owner: owner, Run: s.Run, Secrets: w.digestSecrets(s.Secrets), Env: spec.Env, RunEnv: s.RunEnv,
		User: spec.User, WorkDir: spec.WorkDir, Network: spec.Network, Resources: spec.Resources,
	})
	return "run for " + string(text), err
}

// digestSecrets returns keyed digests of the values of secrets.
func (w *build) digestSecrets(names []string) map[string]string {
	digests := make(map[string]string, len(names))
	for _, name := range names {
		h := hmac.New(sha256.New, w.SecretsKey)
		fmt.Fprintf(h, "%q %q", name, w.Secrets[name])
		digests[name] = hex.EncodeToString(h.Sum(nil))
	}
	return digests
}

// runCommand runs a command in a sandbox.
func (w *build) runCommand(ctx context.Context, i int, s Step) error {
	return w.runCommandFor(ctx, i, s, w.Owner)
}

// runCommandFor runs a command in a sandbox. The result belongs to owner; "" shares it with all
// builds.
func (w *build) runCommandFor(ctx context.Context, i int, s Step, owner string) error {
	spec := w.sandboxSpec(s)
	key, err := w.runKey(s, spec, owner)
	if err != nil {
		return err
	}
	begun := time.Now()
	fresh := s.Fresh || len(s.Secrets) > 0 && len(w.SecretsKey) == 0
	return w.extendImage(ctx, i, fresh, key, func(ctx context.Context) (io.ReadCloser, error) {
		layer, err := w.runInSandbox(ctx, s, spec)
		if err == nil && w.Ran != nil {
			w.Ran(i+1, time.Since(begun))
		}
		return layer, err
	})
}

// sandboxSpec returns the spec of the sandbox for a step.
func (w *build) sandboxSpec(s Step) sandpit.Spec {
	spec := sandpit.Spec{
		Name: "template", Image: w.image, Env: w.config.Env, User: w.config.User, WorkDir: w.config.WorkDir,
		Network: w.template.Build.Network, Resources: w.template.Build.Resources,
	}
	if s.RunUser != "" {
		spec.User = s.RunUser
	}
	if spec.WorkDir == "" {
		spec.WorkDir = "/" // the default would create a directory
	}
	if spec.Resources.Disk == 0 {
		spec.Resources.Disk = buildDisk
	}
	return spec
}

// extendImage builds the next image, unless it is in the cache and fresh is false.
func (w *build) extendImage(ctx context.Context, i int, fresh bool, key string, layer func(context.Context) (io.ReadCloser, error)) error {
	if w.Fresh || fresh {
		key += fmt.Sprint(" ", time.Now().UnixNano())
	}
	e, err := w.Images.Extend(ctx, image.Extension{
		Base: w.image, Key: key, Layer: layer, Config: w.config, Source: fmt.Sprintf("step %d of a template", i+1), Owner: w.Owner,
	}, nil)
	if err != nil {
		return err
	}
	return w.useImage(ctx, e)
}

// useImage sets the image for the next step and keeps it from being removed.
func (w *build) useImage(ctx context.Context, e image.Entry) error {
	root, err := w.Images.Resolve(ctx, sandpit.Image(e.ID), nil)
	if err != nil {
		return err
	}
	old := w.inUse
	w.inUse, w.image = root.File, sandpit.Image(e.ID)
	return old.Close()
}

// runInSandbox runs a command in a new sandbox and returns the changes as a layer. Closing the
// layer deletes the sandbox.
func (w *build) runInSandbox(ctx context.Context, s Step, spec sandpit.Spec) (io.ReadCloser, error) {
	box, err := w.Provider.Create(ctx, sandpit.NewID(), spec)
	if err != nil {
		return nil, err
	}
	layer, err := w.readChanges(ctx, s, box)
	if err != nil {
		return nil, errors.Join(err, destroySandbox(ctx, box))
	}
	return &sandboxLayer{ReadCloser: layer, ctx: ctx, sandbox: box}, nil
}

func (w *build) readChanges(ctx context.Context, s Step, box sandpit.Instance) (io.ReadCloser, error) {
	reader, ok := sandpit.As[sandpit.LayerReader](box)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "sandboxes of this provider cannot return their changes")
	}
	hidden := secrets{}
	for _, name := range s.Secrets {
		hidden[name] = w.Secrets[name]
	}
	to := &sharedWriter{to: w.Output}
	defer to.stop()
	out, errs := &redactor{to: to, secrets: hidden}, &redactor{to: to, secrets: hidden}
	env := maps.Clone(s.RunEnv)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, hidden)
	result, err := workspace.Execute(ctx, box.Guest(), sandpit.Command{Args: s.Run, Env: env, Stdout: out, Stderr: errs}, nil)
	if err = errors.Join(err, out.flush(), errs.flush()); err != nil {
		return nil, err
	}
	switch {
	case result.OutOfMemory:
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the command was killed because the sandbox ran out of memory"), "give the build more memory")
	case result.ExitCode != 0:
		return nil, sandpit.Errorf(sandpit.Invalid, "the command failed with exit status %d", result.ExitCode)
	}
	layer, err := reader.ReadLayer(ctx)
	if err != nil || len(hidden) == 0 {
		return layer, err
	}
	return &secretScanner{ReadCloser: layer, secrets: hidden}, nil
}

// sandboxLayer is a layer that deletes its sandbox when it is closed.
type sandboxLayer struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // the build's, for its values
	sandbox sandpit.Instance
}

func (l *sandboxLayer) Close() error {
	return errors.Join(l.ReadCloser.Close(), destroySandbox(l.ctx, l.sandbox))
}

// destroySandbox deletes a sandbox, even if ctx has ended.
func destroySandbox(ctx context.Context, box sandpit.Instance) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	return box.Destroy(ctx)
}

// finishImage builds the template's final image.
func (w *build) finishImage(ctx context.Context) (image.Entry, error) {
	data, err := json.Marshal(w.template)
	if err != nil {
		return image.Entry{}, err
	}
	return w.Images.Extend(ctx, image.Extension{
		Base: w.image, Key: "template", Config: withTemplate(w.template, w.config), Template: data, Source: "template from " + string(w.template.From), Owner: w.Owner,
	}, nil)
}
