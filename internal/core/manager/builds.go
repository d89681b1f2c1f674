package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Builds builds templates. All methods may be called concurrently.
type Builds struct {
	clock        clock.Clock
	core         *core
	creator      *creator
	events       *Events
	log          *slog.Logger
	messages     *Messages
	o            *Options
	registry     *buildRegistry
	sandboxes    *recordIndex
	slots        slots
	snapshotUses *snapshotUses
	snapshots    *Snapshots
	store        *store.Store
	templates    *templateRecords
	wall         *wallClock
}

// BuildRequest starts a build.
type BuildRequest struct {
	Owner string
	Build sandpit.BuildID
	// Recipe is the recipe. Its base may be a template that the owner may use.
	Recipe sandpit.Recipe
	// Admin reports whether the client is an administrator: the base may be any image. Configured
	// reports whether Recipe.From comes from the server's configuration, not from the client.
	Admin, Configured bool
	// Files is the directory that steps copy files from. Default: none.
	Files string
	// Release is called once when Files is no longer needed, also after an error. Default: none.
	Release func()
	// Prepare is called when the build has its slot, and returns the steps and labels that replace
	// those of Recipe. Default: they are not replaced.
	Prepare func(ctx context.Context) (steps []sandpit.RecipeStep, labels map[string]string, err error)
	// Secrets are the values of the secrets that steps name. They are kept in memory only.
	Secrets map[string]string
	// Login is the login for the base's registry. Default: the configuration's.
	Login RegistryLogin
	// Fresh repeats every step, also cached ones.
	Fresh bool

	// trusted reports whether Recipe.From is a build that the owner may use.
	trusted bool
}

// runningBuild is a build that runs, or waits for its slot.
type runningBuild struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed at the end of the build
	log    buildLog
}

// Start starts a build, which may have to wait for a slot, and returns at once. At most
// Options.MaxBuilds run at a time.
//
// NotFound: there is no such build, or a secret is missing. Conflict: it was started before.
// Invalid: the recipe.
func (bs *Builds) Start(ctx context.Context, r BuildRequest) error {
	if r.Release == nil {
		r.Release = func() {}
	}
	started := false
	err := bs.templates.withEvent(ctx, "start build", r.Owner, string(r.Build), func(ctx context.Context) error {
		b, err := bs.checkRequest(ctx, &r)
		if err != nil {
			return err
		}
		work, cancel := context.WithCancelCause(WithAdministrator(bs.core.ops.ctx, isAdministrator(ctx)))
		run := &runningBuild{cancel: cancel, done: make(chan struct{}), log: buildLog{now: bs.clock.Now, hidden: findHidden(r)}}
		if !bs.registry.addRunning(b.ID, run) {
			cancel(nil)
			return sandpit.Errorf(sandpit.Conflict, "build %s was started before", b.ID)
		}
		// After a crash from now on, failUnfinished fails the build.
		if err := bs.store.Templates().UpdateBuild(ctx, b, sandpit.BuildWaiting); err != nil {
			bs.registry.removeRunning(b.ID)
			cancel(nil)
			return err
		}
		started = true
		bs.core.ops.addOne()
		go func() {
			defer bs.core.ops.end()
			defer close(run.done)
			defer bs.registry.removeRunning(b.ID)
			defer r.Release()
			defer cancel(nil)
			bs.runBuild(work, b, r, run)
		}()
		return nil
	})
	if !started {
		r.Release()
	}
	return err
}

// checkRequest checks a request, and resolves the template that it is based on.
func (bs *Builds) checkRequest(ctx context.Context, r *BuildRequest) (store.TemplateBuild, error) {
	b, err := bs.findOwn(ctx, r.Owner, r.Build)
	if err != nil {
		return b, err
	}
	if b.Status != sandpit.BuildWaiting || b.Recipe.From != "" {
		return b, sandpit.Errorf(sandpit.Conflict, "build %s was started before", b.ID)
	}
	if err := r.Recipe.Validate(); err != nil {
		return b, err
	}
	for _, name := range r.Recipe.Secrets() {
		if r.Secrets[name] == "" {
			return b, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "secret %s is missing", name), "--secret "+name)
		}
	}
	if _, ok := r.Recipe.From.Snapshot(); ok {
		return b, sandpit.Errorf(sandpit.Invalid, "from: a snapshot cannot be the base of a template")
	}
	owner := r.Owner
	if r.Configured {
		owner = ""
	}
	if _, base, err := bs.templates.findBuild(ctx, owner, r.Recipe.From); err == nil {
		r.Recipe.From, r.trusted = base.Image, true
	} else if !errors.Is(err, errNoTemplate) {
		return b, err
	}
	for _, p := range []sandpit.NetworkPolicy{r.Recipe.Network, r.Recipe.Build.Network} {
		if _, err := bs.o.BoundNetwork(p, isAdministrator(ctx)); err != nil {
			return b, err
		}
	}
	if r.Recipe.Resources == (sandpit.Resources{}) {
		r.Recipe.Resources = b.Resources
	}
	b.Recipe, b.Resources = r.Recipe, r.Recipe.Resources
	return b, nil
}

// findOwn returns a build of an owner's template. NotFound, also for another owner's build.
func (bs *Builds) findOwn(ctx context.Context, owner string, id sandpit.BuildID) (store.TemplateBuild, error) {
	b, err := bs.store.Templates().Build(ctx, id)
	if err == nil && b.Owner != owner {
		err = sandpit.Errorf(sandpit.NotFound, "build %.40s not found", string(id))
	}
	return b, err
}

// Get returns an owner's build. NotFound.
func (bs *Builds) Get(ctx context.Context, owner string, id sandpit.BuildID) (sandpit.TemplateBuild, error) {
	b, err := bs.findOwn(ctx, owner, id)
	return b.TemplateBuild, err
}

// List returns the builds of a template without their recipes, newest first, at most limit. Errors
// are those of Templates.Get; PermissionDenied also if it is another owner's.
func (bs *Builds) List(ctx context.Context, owner, ref string, limit int) ([]sandpit.TemplateBuild, error) {
	t, err := bs.templates.findOwn(ctx, owner, ref)
	if err != nil {
		return nil, err
	}
	rows, err := bs.store.Templates().ListBuilds(ctx, store.BuildFilter{Template: t.ID, Brief: true, Limit: limit})
	list := make([]sandpit.TemplateBuild, len(rows))
	for i, b := range rows {
		list[i] = b.TemplateBuild
	}
	return list, err
}

// Log returns the log of an owner's build after the entry with the number after, at most limit
// entries. NotFound.
func (bs *Builds) Log(ctx context.Context, owner string, id sandpit.BuildID, after int64, limit int) ([]sandpit.BuildLog, error) {
	if _, err := bs.findOwn(ctx, owner, id); err != nil {
		return nil, err
	}
	if run := bs.registry.findRunning(id); run != nil {
		return store.Page(run.log.listEntries(), after, limit), nil
	}
	return bs.store.Templates().BuildLog(ctx, id, after, limit)
}

// runBuild runs one build from its start to its end.
func (bs *Builds) runBuild(ctx context.Context, b store.TemplateBuild, r BuildRequest, run *runningBuild) {
	begin := time.Now()
	kept := bs.startSavingLog(ctx, b.ID, &run.log)
	err := bs.performBuild(ctx, &b, r, run)
	kept()
	b.Status, b.FinishedAt = sandpit.BuildReady, bs.clock.Now()
	if err != nil {
		bs.markFailed(ctx, &b, err, run)
	}
	run.log.endOutput()
	// The result is written also when the manager closes.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	wrong := bs.store.Templates().FinishBuild(last, b, run.log.listEntries(), bs.templates.newLimits())
	if wrong != nil && err == nil { // too large, or the store is full
		err = wrong
		bs.markFailed(ctx, &b, err, run)
		wrong = bs.store.Templates().FinishBuild(last, b, run.log.listEntries(), bs.templates.newLimits())
	}
	if wrong != nil {
		bs.log.WarnContext(last, "manager: result of a build not written", slog.String("build", string(b.ID)), slog.Any("error", wrong))
	}
	bs.removeOldest(last, r.Owner)
	if err != nil {
		bs.removeResults(last, b)
	}
	bs.events.Record(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, r.Owner), Action: "build", Args: map[string]string{"build": string(b.ID), "owner": r.Owner},
		Err: run.log.maskError(err), Took: time.Since(begin),
	})
}

// markFailed records that a build has failed.
func (bs *Builds) markFailed(ctx context.Context, b *store.TemplateBuild, err error, run *runningBuild) {
	err = causeOf(ctx, err)
	b.Status, b.Reason.Message = sandpit.BuildFailed, run.log.maskSecrets(err.Error())
	if s, ok := errors.AsType[*StepError](err); ok {
		b.Reason.Step = run.log.maskSecrets(s.Step)
	}
	run.log.addFailure(err.Error())
}

// removeResults removes what a failed build has created. removeUnused retries what cannot be
// removed.
func (bs *Builds) removeResults(ctx context.Context, b store.TemplateBuild) {
	var errs []error
	if b.Snapshot != "" {
		errs = append(errs, bs.dropSnapshot(ctx, b.Snapshot))
	}
	if err := errors.Join(append(errs, bs.o.Builder.RemoveTemplate(ctx, b.ID))...); err != nil {
		bs.log.WarnContext(ctx, "manager: results of a failed build not removed; retried later", slog.String("build", string(b.ID)), slog.Any("error", err))
	}
}

// performBuild waits for a slot and builds.
func (bs *Builds) performBuild(ctx context.Context, b *store.TemplateBuild, r BuildRequest, run *runningBuild) error {
	job := bs.newJob(*b, r, run)
	release, failed := bs.o.Builder.PrepareTemplate(ctx, job)
	if failed == nil {
		defer release()
		var slot *fairshare.Grant
		if slot, failed = bs.awaitSlot(ctx, r.Owner, run); failed == nil {
			defer slot.Release()
		}
	}
	b.Status, b.StartedAt = sandpit.BuildBuilding, bs.clock.Now()
	if r.Recipe.Start != "" {
		b.Snapshot = sandpit.NewSnapshotID() // recorded before it is created
	}
	if err := bs.store.Templates().UpdateBuild(context.WithoutCancel(ctx), *b, sandpit.BuildWaiting); err != nil {
		return err
	}
	if failed != nil { // the store accepts a failure only of a build that has begun
		return failed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bs.o.BuildTimeout,
		sandpit.Errorf(sandpit.Timeout, "the build timed out after %v", bs.o.BuildTimeout))
	defer cancel()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := bs.prepareBuild(ctx, b, &r); err != nil {
		return causeOf(ctx, err)
	}
	job.Recipe = r.Recipe
	size, err := bs.o.Builder.BuildTemplate(ctx, job)
	if err != nil {
		return causeOf(ctx, err)
	}
	b.Image, b.Size = sandpit.Image(sandpit.TemplatePrefix+string(b.ID)), size
	if r.Recipe.Start == "" {
		return nil
	}
	n, err := bs.saveStarted(ctx, *b, run)
	b.Snapshot, b.Size = n.ID, b.Size+n.Size
	return causeOf(ctx, err)
}

// newJob returns the builder's job for a build.
func (bs *Builds) newJob(b store.TemplateBuild, r BuildRequest, run *runningBuild) TemplateJob {
	return TemplateJob{
		Build: b.ID, Recipe: r.Recipe, Dir: r.Files, Secrets: r.Secrets, Fresh: r.Fresh, Login: r.Login,
		Owner: r.Owner, Trusted: r.Admin || r.Configured || r.trusted,
		Create: func(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error) {
			spec.Resources = bs.o.Enforceable(bs.o.BuilderProvider, spec.Resources)
			box, err := bs.createSandbox(ctx, r.Owner, spec, !spec.Network.Online)
			if err != nil {
				return nil, err
			}
			return &buildInstance{Instance: box.currentInstance(), builds: bs, rec: box}, nil
		},
		Output: run.log.writeOutput, Progress: func(text string) { run.log.beginStep(0, text) },
		Begin: func(number, total int, step string) {
			run.log.beginStep(number, fmt.Sprintf("[%d/%d] %s", number, total, step))
		},
	}
}

// awaitSlot waits for a slot as long as ctx allows. A build that has to wait logs it.
func (bs *Builds) awaitSlot(ctx context.Context, owner string, run *runningBuild) (*fairshare.Grant, error) {
	if slot, err := bs.slots.builds.TryAcquire(owner, 1); err == nil {
		return slot, nil
	}
	run.log.beginStep(0, "wait until other builds have finished")
	return bs.slots.builds.Acquire(ctx, owner, 1)
}

// prepareBuild calls the request's Prepare for the steps of the build.
func (bs *Builds) prepareBuild(ctx context.Context, b *store.TemplateBuild, r *BuildRequest) error {
	if r.Prepare == nil {
		return nil
	}
	steps, labels, err := r.Prepare(ctx)
	if err != nil {
		return err
	}
	r.Recipe.Steps, r.Recipe.Labels = steps, labels
	if err := r.Recipe.Validate(); err != nil {
		return err
	}
	b.Recipe = r.Recipe
	return bs.store.Templates().UpdateBuild(context.WithoutCancel(ctx), *b, sandpit.BuildBuilding)
}

// failUnfinished records that the builds that the last manager was running have failed.
func (bs *Builds) failUnfinished(ctx context.Context) error {
	for _, status := range []sandpit.BuildStatus{sandpit.BuildWaiting, sandpit.BuildBuilding} {
		list, err := bs.store.Templates().ListBuilds(ctx, store.BuildFilter{Status: status})
		if err != nil {
			return err
		}
		for _, b := range list {
			if status == sandpit.BuildWaiting && b.Recipe.From == "" {
				continue // not started
			}
			b.Status, b.FinishedAt, b.Reason.Message = sandpit.BuildFailed, bs.clock.Now(), interruptedBuild
			if err := cmp.Or(bs.recordInterruption(ctx, b), bs.store.Templates().UpdateBuild(ctx, b, status)); err != nil {
				return err
			}
		}
	}
	return nil
}
