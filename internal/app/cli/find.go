package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// finder turns names of sandboxes into IDs.
type finder struct {
	client *client.Client
	// known is fetched when it is first needed.
	known   []sandpit.Sandbox
	fetched bool
}

// findID returns the ID for an ID, a name, or the beginning of an ID that is unique.
//
// NotFound: no sandbox matches. Conflict: several do.
func (f *finder) findID(ctx context.Context, name string) (sandpit.ID, error) {
	if sandpit.ID(name).Validate() == nil {
		return sandpit.ID(name), nil
	}
	if name == "" {
		return "", sandpit.Errorf(sandpit.Invalid, "the name of a sandbox is empty")
	}
	if !f.fetched {
		list, err := f.client.Sandboxes.List(ctx, client.Filter{})
		if err != nil {
			return "", err
		}
		f.known, f.fetched = list, true
	}
	found := matchSandboxes(f.known, name)
	switch len(found) {
	case 1:
		return found[0].ID, nil
	case 0:
		return "", f.explainMissing(ctx, name)
	}
	return "", sandpit.WithHint(
		sandpit.Errorf(sandpit.Conflict, "%q matches %d sandboxes: %s", name, len(found), joinNames(found)),
		"use more characters of the ID")
}

// explainMissing returns why no sandbox has a name.
func (f *finder) explainMissing(ctx context.Context, name string) error {
	gone, err := f.client.Sandboxes.List(ctx, client.Filter{States: []sandpit.State{sandpit.StateDeleted}})
	if found := matchSandboxes(gone, name); err == nil && len(found) == 1 {
		return sandpit.Errorf(sandpit.Gone, "sandbox %s was deleted: %s", name, cmp.Or(found[0].Reason, "by request"))
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "sandbox %q not found", name), "see: sandpit ls")
}

// findIDs finds each name. It returns the IDs found, and the errors of the others.
func (f *finder) findIDs(ctx context.Context, names []string) ([]sandpit.ID, error) {
	var ids []sandpit.ID
	var errs []error
	for _, name := range names {
		id, err := f.findID(ctx, name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(ids, id):
			ids = append(ids, id)
		}
	}
	return ids, errors.Join(errs...)
}

// matchSandboxes returns the sandboxes with a name, else those whose ID begins with it.
func matchSandboxes(list []sandpit.Sandbox, name string) []sandpit.Sandbox {
	var named, begun []sandpit.Sandbox
	for _, s := range list {
		if s.Spec.Name == name {
			named = append(named, s)
		}
		if strings.HasPrefix(string(s.ID), name) {
			begun = append(begun, s)
		}
	}
	if len(named) > 0 {
		return named
	}
	return begun
}

// joinNames names up to ten sandboxes.
func joinNames(list []sandpit.Sandbox) string {
	const most = 10
	names := make([]string, 0, most)
	for _, s := range list {
		if len(names) == most {
			return strings.Join(names, ", ") + " and others"
		}
		text := string(s.ID)
		if s.Spec.Name != "" {
			text += " (" + s.Spec.Name + ")"
		}
		names = append(names, text)
	}
	return strings.Join(names, ", ")
}

// findSandbox finds one sandbox.
func findSandbox(ctx context.Context, c *client.Client, name string) (sandpit.ID, error) {
	return (&finder{client: c}).findID(ctx, name)
}
