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
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// BuiltinOwner owns the templates that are part of the program. It is not a name that an
// API key can have.
const BuiltinOwner = "_builtin"

// builtinRetry is how long a built-in template is not built again after its build failed:
// every client may request one.
const builtinRetry = 5 * time.Minute

// Builtin is the state of a template that is part of the program.
type Builtin struct {
	Name string
	// Status is BuildWaiting as long as no client has requested the template.
	Status sandpit.BuildStatus
	// Begun is when its build was requested.
	Begun time.Time
	// Progress is what the build does now. It is the program's own text, for every client.
	Progress string
	// Reason says why the build failed. It may name addresses, and is for administrators.
	Reason string
	// Build names the newest build, for its log. "" is none.
	Build sandpit.BuildID
}

// builtins builds the templates of the program.
type builtins struct {
	mu sync.Mutex // held while a build is requested, so that there is one at a time
}

// PrepareBuiltin returns the state of a template that is part of the program, and has its
// build begin unless it was built or is being built. It does not wait for the build.
//
// NotFound: there is no such template. Unsupported: templates cannot be built here.
func (m *Manager) PrepareBuiltin(ctx context.Context, name string) (Builtin, error) {
	recipe, ok := m.o.Builtins[name]
	switch {
	case !ok:
		return Builtin{}, sandpit.Errorf(sandpit.NotFound, "no template %.100q is part of this program", name)
	case m.o.Builder == nil:
		return Builtin{}, sandpit.Errorf(sandpit.Unsupported, "templates cannot be built by this server")
	}
	version, err := recipeVersion(recipe)
	if err != nil {
		return Builtin{}, err
	}
	m.builtins.mu.Lock()
	defer m.builtins.mu.Unlock()
	seen, current, err := m.lookUpBuiltin(ctx, name, version)
	if err != nil || current || seen.Status == sandpit.BuildBuilding {
		return seen, err
	}
	if seen.Status == sandpit.BuildFailed && m.o.Clock.Now().Sub(seen.Begun) < builtinRetry && seen.Reason != interruptedBuild {
		return seen, nil
	}
	// The client may give up: the build is for all.
	id, err := m.startBuiltin(context.WithoutCancel(ctx), name, version, recipe)
	if err != nil || seen.Status == sandpit.BuildReady { // one of an older program does until then
		return seen, err
	}
	return Builtin{Name: name, Status: sandpit.BuildBuilding, Begun: m.o.Clock.Now(), Build: id}, nil
}

// Builtin returns the state of a template that is part of the program. Errors are those of
// PrepareBuiltin.
func (m *Manager) Builtin(ctx context.Context, name string) (Builtin, error) {
	recipe, ok := m.o.Builtins[name]
	if !ok {
		return Builtin{}, sandpit.Errorf(sandpit.NotFound, "no template %.100q is part of this program", name)
	}
	version, err := recipeVersion(recipe)
	if err != nil {
		return Builtin{}, err
	}
	seen, _, err := m.lookUpBuiltin(ctx, name, version)
	return seen, err
}

// AwaitBuiltin is PrepareBuiltin, and waits for the build as long as limit says. A build
// that takes longer is returned with the status building.
func (m *Manager) AwaitBuiltin(ctx context.Context, name string, limit time.Duration) (Builtin, error) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		seen, err := m.PrepareBuiltin(ctx, name)
		if err != nil || seen.Status != sandpit.BuildBuilding {
			return seen, err
		}
		run := m.templates.find(seen.Build)
		if run == nil { // it has ended meanwhile
			continue
		}
		select {
		case <-run.done:
		case <-late.C:
			seen.Progress = run.log.progress()
			return seen, nil
		case <-ctx.Done():
			return seen, context.Cause(ctx)
		}
	}
}

// BuiltinNames returns the names of the templates that are part of the program, sorted.
func (m *Manager) BuiltinNames() []string {
	var names []string
	for name := range m.o.Builtins {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// StartsProgram reports whether sandboxes of a built-in template have a program running.
func (m *Manager) StartsProgram(name string) bool { return m.o.Builtins[name].Start != "" }

// lookUpBuiltin returns the state of a built-in template, and whether it was built from the
// recipe of this program.
func (m *Manager) lookUpBuiltin(ctx context.Context, name, version string) (seen Builtin, current bool, err error) {
	seen = Builtin{Name: name, Status: sandpit.BuildWaiting}
	t, err := m.o.Store.TemplateNamed(ctx, BuiltinOwner, name)
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
	newest, err := m.o.Store.Builds(ctx, store.BuildFilter{Template: t.ID, Limit: 1})
	if err != nil {
		return seen, false, err
	}
	if id, ok := t.Tags[sandpit.DefaultTag]; ok {
		// A program of another version has built it. A build that replaces it is not awaited.
		building := len(newest) > 0 && m.templates.find(newest[0].ID) != nil
		failed := len(newest) > 0 && newest[0].Status == sandpit.BuildFailed && m.o.Clock.Now().Sub(newest[0].CreatedAt) < builtinRetry
		seen.Status, seen.Build = sandpit.BuildReady, id
		return seen, building || failed, nil
	}
	if len(newest) == 0 {
		return seen, false, nil
	}
	b := newest[0]
	seen.Begun, seen.Build, seen.Reason = b.CreatedAt, b.ID, b.Reason.Message
	if run := m.templates.find(b.ID); run != nil {
		seen.Status, seen.Progress = sandpit.BuildBuilding, run.log.progress()
	} else if b.Status == sandpit.BuildFailed {
		seen.Status = sandpit.BuildFailed
	}
	return seen, false, nil
}

// startBuiltin starts the build of a built-in template, in the manager's own name.
func (m *Manager) startBuiltin(ctx context.Context, name, version string, recipe sandpit.Recipe) (sandpit.BuildID, error) {
	ctx = WithAdministrator(WithActor(ctx, actorManager), true)
	t, b, err := m.CreateTemplate(ctx, TemplateRequest{Owner: BuiltinOwner, Name: name, Tags: []string{sandpit.DefaultTag, version}})
	if err != nil {
		return "", err
	}
	if err := m.o.Store.SetTemplatePublic(ctx, t.ID, true, false); err != nil {
		return "", err
	}
	return b.ID, m.StartBuild(ctx, BuildRequest{Owner: BuiltinOwner, Build: b.ID, Recipe: recipe, Admin: true})
}

// recipeVersion returns a tag that stands for a recipe.
func recipeVersion(r sandpit.Recipe) (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	const enough = 16
	sum := sha256.Sum256(text)
	return "recipe-" + hex.EncodeToString(sum[:])[:enough], nil
}
