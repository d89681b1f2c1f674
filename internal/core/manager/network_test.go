package manager_test

import (
	"context"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// grantAdministrators lets administrators alone have network rules.
func grantAdministrators(p sandpit.NetworkPolicy, administrator bool) (sandpit.NetworkPolicy, error) {
	if len(p.Allow) > 0 && !administrator {
		return p, sandpit.Errorf(sandpit.PermissionDenied, "these rules are for administrators")
	}
	p.Inside = slices.Clone(p.Allow)
	return p, nil
}

// TestNetworkOfRequester has rules bounded for the party that asks, on every path by which
// a policy comes in. The fake provider refuses what gets past that as unsupported.
func TestNetworkOfRequester(t *testing.T) {
	t.Parallel()
	r := templateRig(t, &shop{}, manager.Options{BoundNetwork: grantAdministrators})
	box := r.create(t, manager.CreateRequest{Owner: "ann"})
	inside := sandpit.NetworkPolicy{Online: true, Allow: []string{"10.0.0.1"}}
	build := func(ctx context.Context, name string, recipe sandpit.Recipe) error {
		_, b, err := r.Templates().Create(ctx, manager.TemplateRequest{Owner: "ann", Name: name})
		if err != nil {
			return err
		}
		return r.Builds().Start(ctx, manager.BuildRequest{Owner: "ann", Build: b.ID, Recipe: recipe, Secrets: map[string]string{"TOKEN": "x"}})
	}
	paths := map[string]func(ctx context.Context, name string) error{
		"create": func(ctx context.Context, _ string) error {
			_, err := r.Create(ctx, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Network: inside}})
			return err
		},
		"replace rules": func(ctx context.Context, _ string) error { return r.Network().Set(ctx, box.ID, inside, nil) },
		"build": func(ctx context.Context, name string) error {
			return build(ctx, name, sandpit.Recipe{From: "host", Build: sandpit.RecipeBuild{Network: inside}})
		},
		"template": func(ctx context.Context, name string) error {
			return build(ctx, name, sandpit.Recipe{From: "host", Network: inside})
		},
	}
	for path, do := range paths {
		if err := do(t.Context(), "ordinary-"+path[:3]); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("%s by an ordinary owner: %v", path, err)
		}
		if err := do(manager.WithAdministrator(t.Context(), true), "granted-"+path[:3]); sandpit.CodeOf(err) == sandpit.PermissionDenied {
			t.Errorf("%s by an administrator: %v", path, err)
		}
		ctx := manager.WithAdministrator(manager.WithAdministrator(t.Context(), true), false)
		if err := do(ctx, "again-"+path[:3]); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("%s by an ordinary owner, in the context of an administrator: %v", path, err)
		}
	}
}

// TestInsideIsReplaced has what a request says of itself count for nothing.
func TestInsideIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Spec: sandpit.Spec{Network: sandpit.NetworkPolicy{Inside: []string{"10.0.0.1"}}}})
	if len(s.Spec.Network.Inside) > 0 {
		t.Errorf("the sandbox may open %q", s.Spec.Network.Inside)
	}
}
