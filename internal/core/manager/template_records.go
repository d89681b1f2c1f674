package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// templateRecords finds templates and builds in the store.
type templateRecords struct {
	core     *core
	events   *Events
	log      *slog.Logger
	o        *Options
	registry *buildRegistry
	store    *store.Store
}

// maxPending is how many builds of an owner may be waiting or running.
const maxPending = 100

func (tr *templateRecords) newLimits() store.TemplateLimits {
	return store.TemplateLimits{Bytes: tr.o.MaxTemplateBytes, Pending: maxPending}
}

// withEvent runs an operation for a caller and records it as one event.
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

// addCount adds the created sandboxes that are not written yet.
func (tr *templateRecords) addCount(t sandpit.Template) sandpit.Template {
	tr.registry.mu.Lock()
	defer tr.registry.mu.Unlock()
	t.Spawned += tr.registry.spawned[t.ID]
	return t
}

// findTemplate is Templates.Get.
func (tr *templateRecords) findTemplate(ctx context.Context, owner, text string) (sandpit.Template, error) {
	ref := sandpit.ParseTemplateRef(text)
	t, err := tr.lookUp(ctx, owner, ref)
	isOthers := err == nil && t.Owner != owner && !t.Public || err == nil && ref.Owner != "" && t.Owner != ref.Owner
	if isOthers || errors.Is(err, sandpit.NotFound) { // both give the same error
		return sandpit.Template{}, sandpit.Errorf(sandpit.NotFound, "template %.200s not found", text)
	}
	if err != nil {
		return sandpit.Template{}, err
	}
	return tr.addCount(t), nil
}

// lookUp returns the template that a reference names, whether the owner may use it or not.
func (tr *templateRecords) lookUp(ctx context.Context, owner string, ref sandpit.TemplateRef) (sandpit.Template, error) {
	if id := sandpit.TemplateID(ref.Name); id.Validate() == nil {
		return tr.store.Templates().Template(ctx, id)
	}
	if id := sandpit.BuildID(ref.Name); id.Validate() == nil {
		b, err := tr.store.Templates().Build(ctx, id)
		if err != nil {
			return sandpit.Template{}, err
		}
		return tr.store.Templates().Template(ctx, b.Template)
	}
	if ref.Owner != "" {
		return tr.store.Templates().TemplateNamed(ctx, ref.Owner, ref.Name)
	}
	t, err := tr.store.Templates().TemplateNamed(ctx, owner, ref.Name)
	if errors.Is(err, sandpit.NotFound) {
		t, err = tr.store.Templates().SharedTemplate(ctx, ref.Name)
	}
	if _, ok := tr.o.Builtins[ref.Name]; ok && errors.Is(err, sandpit.NotFound) {
		t, err = tr.findBuiltin(ctx, ref.Name)
	}
	return t, err
}

// findBuiltin returns a template that is part of the program. NotFound: it is not built yet.
func (tr *templateRecords) findBuiltin(ctx context.Context, name string) (sandpit.Template, error) {
	t, err := tr.store.Templates().TemplateNamed(ctx, BuiltinOwner, name)
	if err == nil && t.Tags[sandpit.DefaultTag] == "" {
		err = sandpit.Errorf(sandpit.NotFound, "template %s has no finished build", name)
	}
	return t, err
}

// findOwn is findTemplate for a caller that changes the template.
func (tr *templateRecords) findOwn(ctx context.Context, owner, ref string) (sandpit.Template, error) {
	t, err := tr.findTemplate(ctx, owner, ref)
	if err == nil && t.Owner != owner {
		err = sandpit.Errorf(sandpit.PermissionDenied, "template %.100s is another owner's", ref)
	}
	return t, err
}

// flushCounts writes how many sandboxes were created from templates.
func (tr *templateRecords) flushCounts(ctx context.Context) {
	tr.registry.mu.Lock()
	counts := tr.registry.spawned
	tr.registry.spawned = nil
	tr.registry.mu.Unlock()
	for id, n := range counts {
		if err := tr.store.Templates().CountSpawned(ctx, id, n); err != nil && !errors.Is(err, sandpit.NotFound) && ctx.Err() == nil {
			tr.log.WarnContext(ctx, "manager: count of a template's sandboxes not written", slog.Any("error", err))
		}
	}
}

// buildOf returns the build of a template that a ref names.
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
		return "", sandpit.Errorf(sandpit.NotFound, "template %s has no finished build", t.Name)
	}
	return "", sandpit.Errorf(sandpit.NotFound, "template %s has no tag %.100s", t.Name, tag)
}
