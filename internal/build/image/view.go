package image

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// View is the cache with the rights of an owner. An owner can use images with a shared name,
// and images that it has fetched, by names of its own; other owners do not see those names.
// An ID is valid only if one of these names means that image. An image that the owner may not
// use gives the same errors as one that does not exist. All methods may be called
// concurrently.
type View struct {
	store *Store
	owner string
}

// For returns the view of an owner. It panics if the owner is "", which stands for shared names.
func (s *Store) For(owner string) View {
	if owner == shared {
		panic("image: View of an empty owner")
	}
	return View{s, owner}
}

// Resolve is Store.Resolve for the owner: it takes the host image, IDs and names. A fetched
// image gets a name of the owner.
//
// PermissionDenied: the path of a file or directory, or a registry that the server does not
// contact for owners. Otherwise as Store.Resolve.
func (v View) Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error) {
	root, err := v.resolveRoot(ctx, string(ref), p)
	if err != nil {
		return Root{}, v.hideDir(fmt.Errorf("image %.200s: %w", ref, err))
	}
	return root, nil
}

func (v View) resolveRoot(ctx context.Context, ref string, p Progress) (Root, error) {
	switch {
	case ref == "" || ref == string(sandpit.HostImage):
		return v.store.resolveHost(ctx, p)
	case IsPath(ref):
		return Root{}, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "the image is a file or directory of the server's machine"),
			"use an image of a registry")
	}
	f, err := v.openImage(ctx, ref, p)
	if err != nil {
		return Root{}, err
	}
	root, err := newRoot(f)
	root.ID = v.store.cache.keyOf(f)
	return root, err
}

// openImage opens the image of an ID or name.
func (v View) openImage(ctx context.Context, ref string, p Progress) (*os.File, error) {
	if isKey(ref) {
		mayUse, err := v.canUseID(ref)
		if err == nil && !mayUse {
			err = errNoSuchID(ref)
		}
		if err != nil {
			return nil, err
		}
		return v.store.cache.openID(ctx, ref)
	}
	r, err := parseReference(ref)
	if err != nil {
		return nil, err
	}
	return v.store.openNamed(ctx, v.owner, r, v.store.o.Pull, p)
}

// canUseID reports whether an image has a name that the owner may use.
func (v View) canUseID(id string) (bool, error) {
	names, err := v.store.names.list()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(names[id], v.canUseName), nil
}

// canUseName reports whether the owner may use a name. Names of builds are recorded as shared,
// but only the manager knows their owners.
func (v View) canUseName(p nameRecord) bool {
	r, err := parseReference(p.Name)
	return err == nil && (p.Owner == v.owner || p.Owner == shared && !isBuildName(r))
}

// Pull is Store.Pull for the owner. The name becomes the owner's unless it is shared.
//
// PermissionDenied: also if always is set and the registry has a newer image than the shared
// name.
func (v View) Pull(ctx context.Context, name string, always bool, p Progress) (Entry, error) {
	e, err := v.store.pullFor(ctx, v.owner, name, always, p)
	return v.hidePrivate(e), v.hideDir(err)
}

// List returns the images that the owner has names for, by name.
func (v View) List() ([]Entry, error) {
	all, err := v.store.List()
	if err != nil {
		return nil, v.hideDir(err)
	}
	listed := make(map[string]bool)
	list := []Entry{}
	for _, own := range []bool{false, true} { // a shared name comes before the owner's own
		for _, e := range all {
			if e.Name == "" || listed[e.Name] || (e.Owner != shared) != own || !v.canUseName(nameRecord{Name: e.Name, Owner: e.Owner}) {
				continue
			}
			listed[e.Name] = true
			list = append(list, v.hidePrivate(e))
		}
	}
	sortEntries(list)
	return list, nil
}

// hidePrivate removes from an entry what concerns other owners or the machine: the time of last
// use and the source.
func (v View) hidePrivate(e Entry) Entry {
	e.Used, e.Source = time.Time{}, ""
	return e
}

// hideDir removes the path of the cache, which is the administrator's, from an error.
func (v View) hideDir(err error) error {
	if err == nil {
		return nil
	}
	text, hint := err.Error(), sandpit.HintOf(err)
	if !strings.Contains(text+hint, v.store.cache.dir) {
		return err
	}
	replace := strings.NewReplacer(v.store.cache.dir+"/", "", v.store.cache.dir, "the image cache")
	return sandpit.WithHint(sandpit.Errorf(sandpit.CodeOf(err), "%s", replace.Replace(text)), replace.Replace(hint))
}
