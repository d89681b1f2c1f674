package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

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

// templateRecords finds templates and builds in the store.
type templateRecords struct {
	core     *core
	events   *Events
	log      *slog.Logger
	o        *Options
	registry *templates
	store    *store.Store
}

// TemplateBuilder makes the images of templates. They are found under
// "template:" and the ID of the build by the provider Options.BuilderProvider.
type TemplateBuilder interface {
	// PrepareTemplate fetches what a recipe starts from, as far as it does not need the
	// job's Create, and holds it until release is called. It may wait long.
	//
	// Errors are those of Images.PrepareImage.
	PrepareTemplate(ctx context.Context, j TemplateJob) (release func(), err error)
	// BuildTemplate carries out a recipe. After an error no image of it is left.
	//
	// Errors are told to whoever builds. One that a step is at fault for is a StepError.
	BuildTemplate(ctx context.Context, j TemplateJob) (size int64, err error)
	// RemoveTemplate lets go of the image of a build. It is no error if there is none.
	RemoveTemplate(ctx context.Context, id sandpit.BuildID) error
}

// TemplateJob is one build for a TemplateBuilder.
type TemplateJob struct {
	Build  sandpit.BuildID
	Recipe sandpit.Recipe
	// Dir is where files are copied from. Default: there are none.
	Dir string
	// Secrets are values of those that steps name.
	Secrets map[string]string
	// Fresh does every step again.
	Fresh bool
	// Login is for the registry of the base. Default: that of the configuration.
	Login RegistryLogin
	// Owner owns the build, and what it fetches and makes.
	Owner string
	// Trusted says that an administrator, the configuration, or the manager (for a build that
	// the owner may use) names Recipe.From: they may use every image.
	Trusted bool
	// Create makes a sandbox in which a step runs.
	Create func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error)
	// Output takes what steps put out.
	Output func(p []byte)
	// Begin hears of each step.
	Begin func(number, total int, step string)
	// Progress hears, every few seconds, what is done before the steps, such as a download.
	Progress func(text string)
}

// RegistryLogin is kept in memory only, and only as long as a build takes.
type RegistryLogin struct{ User, Password string }

// StepError is an error that one step of a recipe is at fault for.
type StepError struct {
	// Step is as people write it.
	Step string
	Err  error
}

// Error implements error.
func (e *StepError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// templates orders what happens to builds.
type templates struct {
	mu      sync.Mutex
	running map[sandpit.BuildID]*running
	boxes   map[sandpit.ID]bool // in which builds do something
	spawned map[sandpit.TemplateID]int64
	closed  bool
}

func (t *templates) find(id sandpit.BuildID) *running {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[id]
}

// begin enters a build, unless it is there, or all have been stopped.
func (t *templates) begin(id sandpit.BuildID, r *running) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.running[id] != nil {
		return false
	}
	if t.running == nil {
		t.running = make(map[sandpit.BuildID]*running)
	}
	t.running[id] = r
	return true
}

func (t *templates) end(id sandpit.BuildID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, id)
}

// stop ends all builds, and lets none begin.
func (t *templates) stop(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, r := range t.running {
		r.cancel(why)
	}
}

// houses notes whether a build does something in a sandbox.
func (t *templates) houses(id sandpit.ID, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.boxes == nil {
		t.boxes = make(map[sandpit.ID]bool)
	}
	if t.boxes[id] = yes; !yes {
		delete(t.boxes, id)
	}
}

func (t *templates) has(id sandpit.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.boxes[id]
}

func (t *templates) count(id sandpit.TemplateID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spawned == nil {
		t.spawned = make(map[sandpit.TemplateID]int64)
	}
	t.spawned[id]++
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

// maxPending is how many builds of an owner may be waiting or going on.
const maxPending = 100

func (tr *templateRecords) newLimits() store.TemplateLimits {
	return store.TemplateLimits{Bytes: max(0, tr.o.MaxTemplateBytes), Pending: maxPending}
}

// withEvent does something for a caller, as one event.
func (tr *templateRecords) withEvent(ctx context.Context, action, owner, name string, do func(context.Context) error) error {
	begin := time.Now()
	if tr.core.closing.Load() || !tr.core.ops.begin() {
		return errClosed
	}
	defer tr.core.ops.end()
	actor := actorOf(ctx, owner)
	detached, cancel := tr.core.ops.detach(ctx)
	defer cancel()
	err := do(detached)
	tr.events.Record(Report{
		Actor: actor, Action: action, Args: map[string]string{"template": name, "owner": owner}, Err: err, Took: time.Since(begin),
	})
	return err
}

// addCount adds what is not written down yet.
func (tr *templateRecords) addCount(t sandpit.Template) sandpit.Template {
	tr.registry.mu.Lock()
	defer tr.registry.mu.Unlock()
	t.Spawned += tr.registry.spawned[t.ID]
	return t
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

// findTemplate is Templates.Get.
func (tr *templateRecords) findTemplate(ctx context.Context, owner, text string) (sandpit.Template, error) {
	ref := sandpit.ParseTemplateRef(text)
	t, err := tr.lookUp(ctx, owner, ref)
	isOthers := err == nil && t.Owner != owner && !t.Public || err == nil && ref.Owner != "" && t.Owner != ref.Owner
	if isOthers || errors.Is(err, sandpit.NotFound) { // which look alike
		return sandpit.Template{}, sandpit.Errorf(sandpit.NotFound, "template %.200s not found", text)
	}
	if err != nil {
		return sandpit.Template{}, err
	}
	return tr.addCount(t), nil
}

// lookUp returns what a reference means, whether the owner may use it or not.
func (tr *templateRecords) lookUp(ctx context.Context, owner string, ref sandpit.TemplateRef) (sandpit.Template, error) {
	if id := sandpit.TemplateID(ref.Name); id.Validate() == nil {
		return tr.store.Template(ctx, id)
	}
	if id := sandpit.BuildID(ref.Name); id.Validate() == nil {
		b, err := tr.store.Build(ctx, id)
		if err != nil {
			return sandpit.Template{}, err
		}
		return tr.store.Template(ctx, b.Template)
	}
	if ref.Owner != "" {
		return tr.store.TemplateNamed(ctx, ref.Owner, ref.Name)
	}
	t, err := tr.store.TemplateNamed(ctx, owner, ref.Name)
	if errors.Is(err, sandpit.NotFound) {
		t, err = tr.store.SharedTemplate(ctx, ref.Name)
	}
	if _, ok := tr.o.Builtins[ref.Name]; ok && errors.Is(err, sandpit.NotFound) {
		t, err = tr.findBuiltin(ctx, ref.Name)
	}
	return t, err
}

// findBuiltin returns a template that is part of the program. NotFound: it was not built
// yet.
func (tr *templateRecords) findBuiltin(ctx context.Context, name string) (sandpit.Template, error) {
	t, err := tr.store.TemplateNamed(ctx, BuiltinOwner, name)
	if err == nil && t.Tags[sandpit.DefaultTag] == "" {
		err = sandpit.Errorf(sandpit.NotFound, "template %s has no build that is ready", name)
	}
	return t, err
}

// findOwn is FindTemplate for who wants to change it.
func (tr *templateRecords) findOwn(ctx context.Context, owner, ref string) (sandpit.Template, error) {
	t, err := tr.findTemplate(ctx, owner, ref)
	if err == nil && t.Owner != owner {
		err = sandpit.Errorf(sandpit.PermissionDenied, "template %.100s is another owner's", ref)
	}
	return t, err
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

// buildOf returns the build of a template that a ref stands for.
func buildOf(t sandpit.Template, ref string) (sandpit.BuildID, error) {
	parsed := sandpit.ParseTemplateRef(ref)
	if id := sandpit.BuildID(parsed.Name); id.Validate() == nil {
		return id, nil
	}
	tag := cmp.Or(parsed.Tag, sandpit.DefaultTag)
	if id := sandpit.BuildID(tag); id.Validate() == nil {
		return id, nil
	}
	if id, ok := t.Tags[tag]; ok {
		return id, nil
	}
	if len(t.Tags) == 0 {
		return "", sandpit.Errorf(sandpit.NotFound, "template %s has no build that is ready", t.Name)
	}
	return "", sandpit.Errorf(sandpit.NotFound, "template %s has no tag %.100s", t.Name, tag)
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

// cancelBuild ends a build that goes on, and waits for that.
func (bs *Builds) cancelBuild(ctx context.Context, id sandpit.BuildID) {
	r := bs.registry.find(id)
	if r == nil {
		return
	}
	r.cancel(sandpit.Errorf(sandpit.Canceled, "the template was removed"))
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

// dropBuild removes a build with all that it has. Conflict: it is needed still.
func (bs *Builds) dropBuild(ctx context.Context, b store.TemplateBuild) error {
	needed := sandpit.Errorf(sandpit.Conflict, "build %s is needed still", b.ID)
	if bs.registry.find(b.ID) != nil {
		return needed
	}
	for _, one := range bs.sandboxes.all() {
		if row := one.look(); row.Spec.Template.Build == b.ID && row.State != sandpit.StateDeleted {
			return needed
		}
	}
	if b.Snapshot != "" {
		if err := bs.dropSnapshot(ctx, b.Snapshot); err != nil {
			return err
		}
	}
	if bs.o.Builder != nil {
		if err := bs.o.Builder.RemoveTemplate(ctx, b.ID); err != nil {
			return err
		}
	}
	return bs.store.DeleteBuild(ctx, b.ID)
}

func (bs *Builds) dropSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	n, err := bs.store.BuildSnapshot(ctx, id)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bs.snapshotUses.begin(id) {
		return sandpit.Errorf(sandpit.Conflict, "snapshot %s is being used", id)
	}
	defer bs.snapshotUses.end(id)
	keeper, err := bs.snapshots.findKeeper(n.Provider)
	if err != nil {
		return err
	}
	return bs.snapshots.dropSnapshot(ctx, keeper, id)
}

// unstarted is how long a build may wait for StartBuild.
const unstarted = time.Hour

// removeUnused removes builds that no tag means, and writes down what was counted.
func (bs *Builds) removeUnused(ctx context.Context) {
	bs.templates.flushCounts(ctx)
	builds, err := bs.store.Builds(ctx, store.BuildFilter{Loose: true, Brief: true})
	if err != nil {
		if ctx.Err() == nil {
			bs.log.WarnContext(ctx, "the builds of templates cannot be looked through", slog.Any("error", err))
		}
		return
	}
	for _, b := range builds {
		if ctx.Err() != nil || !bs.isForgettable(ctx, b) {
			continue
		}
		bs.removeBuild(ctx, b)
	}
}

// removeBuild removes a build unless it is in use, and records it.
func (bs *Builds) removeBuild(ctx context.Context, b store.TemplateBuild) {
	if err := bs.dropBuild(ctx, b); !errors.Is(err, sandpit.Conflict) {
		bs.events.Record(Report{Actor: actorManager, Action: "remove build", Args: map[string]string{"build": string(b.ID), "owner": b.Owner}, Err: err})
	}
}

// maxUntagged is how many builds of an owner that have ended and have no tag are remembered:
// their recipes and logs take space.
const maxUntagged = 50

// removeOldest removes the oldest untagged builds of an owner beyond maxUntagged. Builds that
// wait or are being carried out do not count.
func (bs *Builds) removeOldest(ctx context.Context, owner string) {
	builds, err := bs.store.Builds(ctx, store.BuildFilter{Owner: owner, Loose: true, Brief: true})
	if err != nil {
		bs.log.WarnContext(ctx, "manager: old builds not removed", slog.String("owner", owner), slog.Any("error", err))
		return
	}
	ended := 0
	for _, b := range builds { // the newest first
		if !b.Status.Ended() {
			continue
		}
		if ended++; ended > maxUntagged {
			bs.removeBuild(ctx, b)
		}
	}
}

// isForgettable reports whether nobody can ask for a build any more, or has for long.
func (bs *Builds) isForgettable(ctx context.Context, b store.TemplateBuild) bool {
	_, err := bs.store.Template(ctx, b.Template)
	switch now := bs.clock.Now(); {
	case errors.Is(err, sandpit.NotFound):
		return true
	case err != nil:
		return false
	case b.Status.Ended():
		return now.Sub(b.FinishedAt) > bs.o.Remember
	default:
		return now.Sub(b.CreatedAt) > unstarted
	}
}

// flushCounts writes down how many sandboxes were made of templates.
func (tr *templateRecords) flushCounts(ctx context.Context) {
	tr.registry.mu.Lock()
	counts := tr.registry.spawned
	tr.registry.spawned = nil
	tr.registry.mu.Unlock()
	for id, n := range counts {
		if err := tr.store.CountSpawned(ctx, id, n); err != nil && !errors.Is(err, sandpit.NotFound) && ctx.Err() == nil {
			tr.log.WarnContext(ctx, "how many sandboxes were made of a template is not written down", slog.Any("error", err))
		}
	}
}
