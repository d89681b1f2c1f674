package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Import converts a directory or archive, as Resolve does, and gives the image a
// name, or those that the archive has for it if name is "". The entries of all
// its names are returned.
//
// Invalid: there is no name, or it is none. Otherwise as Resolve.
func (s *Store) Import(ctx context.Context, path, name string, p Progress) ([]Entry, error) {
	if !IsPath(path) {
		path = "./" + path
	}
	return s.importWith(ctx, path, name, func() (*os.File, indexEntry, error) { return s.openPath(ctx, path, p) })
}

// ImportFrom is Import of an archive that r reads.
func (s *Store) ImportFrom(ctx context.Context, r io.Reader, name string, p Progress) ([]Entry, error) {
	const source = "-"
	return s.importWith(ctx, source, name, func() (*os.File, indexEntry, error) {
		var e indexEntry
		f, key, err := s.makeOnce(ctx, makeJob{
			lock: "stream-" + rand.Text(),
			find: func() (string, error) {
				if e.Key == "" {
					return "", nil
				}
				return s.existingKey(e.Key)
			},
			write: func(out *os.File) (makeResult, error) {
				var m makeResult
				var err error
				m, e, err = s.convertTar(&countingReader{ctx: ctx, r: r, progress: p}, out, archiveOrigin{path: source})
				return m, err
			},
		})
		e.Key = key
		return f, e, err
	})
}

func (s *Store) importWith(
	ctx context.Context, path, name string, convert func() (*os.File, indexEntry, error),
) (list []Entry, err error) {
	var given []reference
	if name != "" {
		if given, err = importNames([]string{name}); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
	}
	f, e, err := convert()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if name == "" {
		if given, err = importNames(slices.DeleteFunc(e.Names, isBareTag)); err != nil || len(given) == 0 {
			return nil, fmt.Errorf("import %s: %w", path, errNameless(err))
		}
	}
	key := strings.TrimSuffix(f.Name()[len(s.dir)+1:], imageSuffix)
	for _, r := range given {
		if err := s.setName(ctx, r, nameRecord{Name: r.String(), Key: key}); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		entry, err := newEntry(f, key)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		entry.Name = r.shortName()
		list = append(list, entry)
	}
	return list, nil
}

// isBareTag is true of a name that is only a tag, as some archives have it.
func isBareTag(name string) bool { return !strings.Contains(name, ":") }

func errNameless(err error) error {
	if err == nil {
		err = sandpit.Errorf(sandpit.Invalid, "it does not say what it is called")
	}
	return sandpit.WithHint(err, "add --name NAME")
}

// importNames reads names, once each.
func importNames(names []string) ([]reference, error) {
	var list []reference
	for _, name := range names {
		r, err := parseReference(name)
		if err != nil {
			return nil, err
		}
		if name == string(sandpit.HostImage) || IsPath(name) {
			return nil, errReference("%s would mean something else", quoteName(name))
		}
		if r.digest != "" {
			return nil, errReference("%s has a digest, which nobody can choose", quoteName(name))
		}
		if r.template != "" {
			return nil, errReference("%s is for a template", quoteName(name))
		}
		if !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list, nil
}

// setName remembers what a shared name means from now on.
func (s *Store) setName(ctx context.Context, r reference, p nameRecord) error {
	f, err := s.lockNew(ctx, nameFile(shared, r))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // gives up the lock; the file was synced
	return s.writeName(f, nameFile(shared, r), p)
}

// Pull fetches the image of a registry if it is not in the cache, or, with always,
// if the registry has another one by now. The name is shared.
//
// Conflict: the name is that of an imported image, and always would replace that.
// PermissionDenied: the pull policy is PullNever. Otherwise as Resolve.
func (s *Store) Pull(ctx context.Context, name string, always bool, p Progress) (Entry, error) {
	return s.pullFor(ctx, shared, name, always, p)
}

func (s *Store) pullFor(ctx context.Context, owner, name string, always bool, p Progress) (e Entry, err error) {
	r, err := parseReference(name)
	if err != nil {
		return e, fmt.Errorf("image %s: %w", quoteName(name), err)
	}
	f, err := s.pullExplicitly(ctx, owner, r, always, p)
	if err != nil {
		return e, fmt.Errorf("image %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e, err = newEntry(f, s.keyOf(f))
	e.Name, e.Owner = r.shortName(), owner
	return e, err
}

// pullExplicitly is named for a request that is only about fetching.
func (s *Store) pullExplicitly(ctx context.Context, owner string, r reference, always bool, p Progress) (*os.File, error) {
	if !always || r.digest != "" || r.template != "" {
		return s.openNamed(ctx, owner, r, s.o.Pull, p)
	}
	if s.o.Pull == PullNever {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"),
			"set image.pull to missing, or: sandpit image import FILE --name "+r.shortName())
	}
	have, err := s.lookUpRecord(shared, r)
	switch {
	case err != nil:
		return nil, err
	case have.isImported(r):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the image was imported, and a registry does not replace it"),
			"to use the registry's image, ask an administrator to remove this one: sandpit image rm "+r.shortName())
	case owner != shared && have.Key != "":
		return s.latestShared(ctx, owner, r, have)
	}
	return s.openNamed(ctx, owner, r, PullAlways, p)
}

// latestShared returns the image of a shared name, if the registry has no newer one.
//
// PermissionDenied: the registry has another one by now.
func (s *Store) latestShared(ctx context.Context, owner string, r reference, have nameRecord) (*os.File, error) {
	now, err := s.latestDigest(ctx, owner, r)
	if err != nil {
		return nil, err
	}
	if now != have.Digest {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the registry has another version, and only an administrator can replace the shared one"),
			"ask an administrator to pull it, or name the version itself: "+r.untaggedName()+"@"+now)
	}
	f, err := s.openImage(ctx, have.Key)
	if err == nil && f == nil {
		err = sandpit.Errorf(sandpit.Unavailable, "the image was just removed from the cache")
	}
	return f, err
}

// Update says how an image of the cache compares with that of its registry.
type Update struct {
	Name string `json:"name"`
	// Have is the digest that the registry had when it was fetched; "" if it was
	// imported.
	Have string `json:"have,omitempty"`
	// Latest is the digest that the registry has now.
	Latest string `json:"latest"`
	// Newer is true if they differ.
	Newer bool `json:"newer"`
}

// Check asks the registry whether a name means another image by now. Nothing is
// changed.
//
// NotFound: the name is not in the cache, or not in the registry. PermissionDenied: the
// pull policy is PullNever. Otherwise as Resolve.
func (s *Store) Check(ctx context.Context, name string) (Update, error) {
	r, err := parseReference(name)
	if err != nil {
		return Update{}, fmt.Errorf("image %s: %w", quoteName(name), err)
	}
	have, err := s.lookUpRecord(shared, r)
	if err == nil && have.Key == "" {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "it is not in the cache"), "sandpit image pull "+r.shortName())
	}
	u := Update{Name: r.shortName(), Have: have.Digest}
	if err == nil && s.o.Pull == PullNever {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"), "set image.pull to missing")
	}
	if err == nil && r.digest == "" && r.template == "" {
		u.Latest, err = s.latestDigest(ctx, shared, r)
	} else {
		u.Latest = have.Digest // a digest never means anything else
	}
	if err != nil {
		return Update{}, fmt.Errorf("image %s: %w", name, err)
	}
	u.Newer = u.Have != u.Latest
	return u, nil
}
