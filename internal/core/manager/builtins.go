package manager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Builtins are the templates that are part of the program. All methods may be called concurrently.
type Builtins struct {
	mu sync.Mutex // held while a build is requested, so that there is one at a time

	builds        *Builds
	clock         clock.Clock
	o             *Options
	registry      *buildRegistry
	store         *store.Store
	templateGroup *Templates
}

// BuiltinOwner owns the templates that are part of the program. An API key cannot have this name.
const BuiltinOwner = "_builtin"

// builtinRetry is how long a built-in template is not built again after its build failed: every
// client may request one.
const builtinRetry = 5 * time.Minute

// Builtin is the state of a template that is part of the program.
type Builtin struct {
	Name string
	// Status is BuildWaiting until a client has requested the template.
	Status sandpit.BuildStatus
	// Begun is when its build was requested.
	Begun time.Time
	// Progress is the current step of the build, which every client may see.
	Progress string
	// Reason is why the build failed. It may name addresses, and is for administrators.
	Reason string
	// Build is the ID of the newest build, for its log, or "".
	Build sandpit.BuildID
}

// Prepare returns the state of a template that is part of the program, and starts its build unless
// it is built or being built. It does not wait for the build.
//
// NotFound: there is no such template. Unsupported: templates cannot be built here.
func (bi *Builtins) Prepare(ctx context.Context, name string) (Builtin, error) {
	recipe, ok := bi.o.Builtins[name]
	switch {
	case !ok:
		return Builtin{}, sandpit.NoBuiltinTemplate(name, bi.Names())
	case bi.o.Builder == nil:
		return Builtin{}, sandpit.Errorf(sandpit.Unsupported, "templates cannot be built by this server")
	}
	version, err := recipeVersion(recipe)
	if err != nil {
		return Builtin{}, err
	}
	bi.mu.Lock()
	defer bi.mu.Unlock()
	seen, current, err := bi.lookUp(ctx, name, version)
	if err == nil && seen.Status == sandpit.BuildWaiting && seen.Build != "" { // it may have ended between the reads
		seen, current, err = bi.lookUp(ctx, name, version)
	}
	if err != nil || current || seen.Status == sandpit.BuildBuilding {
		return seen, err
	}
	if seen.Status == sandpit.BuildFailed && bi.clock.Now().Sub(seen.Begun) < builtinRetry && seen.Reason != interruptedBuild {
		return seen, nil
	}
	// The build continues if the client disconnects, because it is for all clients.
	id, err := bi.startBuild(context.WithoutCancel(ctx), name, version, recipe)
	if err != nil || seen.Status == sandpit.BuildReady { // the build of an older program is used until then
		return seen, err
	}
	return Builtin{Name: name, Status: sandpit.BuildBuilding, Begun: bi.clock.Now(), Build: id}, nil
}

// Get returns the state of a template that is part of the program. Errors are those of Prepare.
func (bi *Builtins) Get(ctx context.Context, name string) (Builtin, error) {
	recipe, ok := bi.o.Builtins[name]
	if !ok {
		return Builtin{}, sandpit.NoBuiltinTemplate(name, bi.Names())
	}
	version, err := recipeVersion(recipe)
	if err != nil {
		return Builtin{}, err
	}
	seen, _, err := bi.lookUp(ctx, name, version)
	return seen, err
}

// Await is Prepare, and waits for the build at most limit. A build that takes longer is returned
// with the status building.
func (bi *Builtins) Await(ctx context.Context, name string, limit time.Duration) (Builtin, error) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		seen, err := bi.Prepare(ctx, name)
		if err != nil || seen.Status != sandpit.BuildBuilding {
			return seen, err
		}
		run := bi.registry.findRunning(seen.Build)
		if run == nil { // ended meanwhile
			continue
		}
		select {
		case <-run.done:
		case <-late.C:
			seen.Progress = run.log.currentStep()
			return seen, nil
		case <-ctx.Done():
			return seen, context.Cause(ctx)
		}
	}
}

// Names returns the names of the templates that are part of the program, sorted.
func (bi *Builtins) Names() []string {
	var names []string
	for name := range bi.o.Builtins {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// StartsProgram reports whether sandboxes of a built-in template have a program running.
func (bi *Builtins) StartsProgram(name string) bool { return bi.o.Builtins[name].Start != "" }

// lookUp returns the state of a built-in template, and whether it was built from the recipe of this
// program.
func (bi *Builtins) lookUp(ctx context.Context, name, version string) (seen Builtin, current bool, err error) {
	seen = Builtin{Name: name, Status: sandpit.BuildWaiting}
	t, err := bi.store.Templates().TemplateNamed(ctx, BuiltinOwner, name)
	if errors.Is(err, sandpit.NotFound) {
		return seen, false, nil
	}
	if err != nil {
		return seen, false, err
	}
	if id, ok := t.Tags[version]; ok {
		seen.Status, seen.Build = sandpit.BuildReady, id
		return seen, true, nil
	}
	newest, err := bi.store.Templates().ListBuilds(ctx, store.BuildFilter{Template: t.ID, Limit: 1})
	if err != nil {
		return seen, false, err
	}
	if id, ok := t.Tags[sandpit.DefaultTag]; ok {
		// A program of another version has built it. A build that replaces it is not awaited.
		building := len(newest) > 0 && bi.registry.findRunning(newest[0].ID) != nil
		failed := len(newest) > 0 && newest[0].Status == sandpit.BuildFailed && bi.clock.Now().Sub(newest[0].CreatedAt) < builtinRetry
		seen.Status, seen.Build = sandpit.BuildReady, id
		return seen, building || failed, nil
	}
	if len(newest) == 0 {
		return seen, false, nil
	}
	b := newest[0]
	seen.Begun, seen.Build, seen.Reason = b.CreatedAt, b.ID, b.Reason.Message
	if run := bi.registry.findRunning(b.ID); run != nil {
		seen.Status, seen.Progress = sandpit.BuildBuilding, run.log.currentStep()
	} else if b.Status == sandpit.BuildFailed {
		seen.Status = sandpit.BuildFailed
	}
	return seen, false, nil
}

// startBuild starts the build of a built-in template, as the manager.
func (bi *Builtins) startBuild(ctx context.Context, name, version string, recipe sandpit.Recipe) (sandpit.BuildID, error) {
	ctx = WithAdministrator(WithActor(ctx, actorManager), true)
	t, b, err := bi.templateGroup.Create(ctx, TemplateRequest{Owner: BuiltinOwner, Name: name, Tags: []string{sandpit.DefaultTag, version}})
	if err != nil {
		return "", err
	}
	if err := bi.store.Templates().SetTemplatePublic(ctx, t.ID, true, false); err != nil {
		return "", err
	}
	return b.ID, bi.builds.Start(ctx, BuildRequest{Owner: BuiltinOwner, Build: b.ID, Recipe: recipe, Admin: true})
}

// recipeVersion returns a tag that identifies a recipe.
func recipeVersion(r sandpit.Recipe) (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	const enough = 16
	sum := sha256.Sum256(text)
	return "recipe-" + hex.EncodeToString(sum[:])[:enough], nil
}
