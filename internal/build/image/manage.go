package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Entry is one image of the cache under one of its names.
type Entry struct {
	// Name is a reference that Resolve takes. "" if it has none.
	Name string `json:"name,omitempty"`
	// Owner owns the name; "" if it is shared by all owners.
	Owner string `json:"owner,omitempty"`
	// ID identifies it in the cache: 64 lower-case hexadecimal digits.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Source is what it was built from, for people.
	Source string `json:"source,omitempty"`
	// Digest is the digest of the manifest, if it has one.
	Digest   string `json:"digest,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Size is in bytes on disk.
	Size int64 `json:"size"`
	// Created is when the image was built, if its configuration has that.
	Created time.Time `json:"created,omitzero"`
	// Used is when a sandbox was last created from it, with a precision of ten seconds.
	Used time.Time `json:"used"`

	digest string // of the registry's image under the name
	maker  string // owner of its build; "" if it was fetched or belongs to the administrator
}

// List returns the images in the cache by name, those without a name last.
func (s *Store) List() ([]Entry, error) {
	names, err := s.names.list()
	if err != nil {
		return nil, err
	}
	images, err := s.cache.listImages()
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, image := range images {
		of := names[image.ID]
		if len(of) == 0 {
			list = append(list, image)
		}
		for _, p := range of {
			image.Name, image.Owner, image.digest = shortenName(p.Name), p.Owner, p.Digest
			list = append(list, image)
		}
	}
	sortEntries(list)
	return list, nil
}

// sortEntries sorts by name, those without a name last.
func sortEntries(list []Entry) {
	slices.SortFunc(list, func(a, b Entry) int {
		if (a.Name == "") != (b.Name == "") {
			return strings.Compare(b.Name, a.Name)
		}
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Owner, b.Owner),
			strings.Compare(a.Source, b.Source), strings.Compare(a.ID, b.ID))
	})
}

func shortenName(name string) string {
	r, err := parseReference(name)
	if err != nil {
		return name
	}
	return r.shortName()
}

// listImages returns the finished images.
func (c *cacheDir) listImages() ([]Entry, error) {
	files, err := c.listFiles(imageSuffix)
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, file := range files {
		key := strings.TrimSuffix(file, imageSuffix)
		if !isKey(key) {
			continue
		}
		e, err := c.readEntry(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// readEntry returns the entry of a finished image without changing its time of last use.
func (c *cacheDir) readEntry(key string) (Entry, error) {
	f, err := os.OpenFile(c.imagePath(key), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Entry{}, err
	}
	defer func() { _ = f.Close() }() // only read
	return newEntry(f, key)
}

func newEntry(f *os.File, key string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Entry{}, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	e := Entry{ID: key, Size: st.Blocks * 512, Used: time.Unix(st.Mtim.Unix())}
	n, err := readNote(f)
	switch {
	case err == nil:
		e.Kind, e.Source, e.Digest, e.Platform, e.Created, e.maker = n.Kind, n.Source, n.Digest, n.Platform, n.Created, n.Owner
	case sandpit.CodeOf(err) == sandpit.Internal: // listed, so that it can be removed
		e.Source = "damaged"
	default:
		return e, err
	}
	return e, nil
}

// Remove removes an image by a shared name, an ID or digest (at least its first six digits),
// or the path it was built from. Given a name, it removes the name, and the image only if it
// has no other names, including owners' names. It returns the removed entries. Sandboxes that
// run from an image keep running.
//
// NotFound: no such image. Invalid: the text matches several images.
func (s *Store) Remove(ctx context.Context, text string) ([]Entry, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	found := matchEntries(list, text)
	if len(found) == 0 {
		if gone, err := s.names.removeShared(ctx, text); gone || err != nil {
			return nil, err
		}
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "image %s: not in the cache", quoteName(text)), "see: sandpit image ls --all")
	}
	byName := found[0].Name != "" && len(found) == 1 && isName(text, found[0])
	for _, e := range found[1:] {
		if e.ID != found[0].ID {
			return nil, sandpit.Errorf(sandpit.Invalid, "image %s: several images have an ID with this prefix", quoteName(text))
		}
	}
	others := slices.ContainsFunc(list, func(e Entry) bool {
		return e.ID == found[0].ID && (e.Name != found[0].Name || e.Owner != found[0].Owner)
	})
	if byName && others {
		return found, s.names.remove(ctx, func(p nameRecord) bool { return p.Owner == shared && shortenName(p.Name) == found[0].Name })
	}
	if err := os.Remove(s.cache.imagePath(found[0].ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w", quoteName(text), withoutPath(err))
	}
	return found, s.cache.removeOrphanRecords(ctx)
}

func isName(text string, e Entry) bool {
	r, err := parseReference(text)
	return err == nil && r.shortName() == e.Name && e.Owner == shared
}

// matchEntries returns the entries that a name, ID, digest or source matches.
func matchEntries(list []Entry, text string) []Entry {
	for _, e := range list {
		if e.Name != "" && isName(text, e) {
			return []Entry{e}
		}
	}
	const least = 6
	var found []Entry
	hex := strings.TrimPrefix(text, "sha256:")
	for _, e := range list {
		byID := len(hex) >= least && (strings.HasPrefix(e.ID, hex) || strings.HasPrefix(strings.TrimPrefix(e.Digest, "sha256:"), hex))
		if byID || e.Name == "" && e.Source == text && text != "" {
			found = append(found, e)
		}
	}
	return found
}

// Own reports whether e is an image that sandpit builds for its own use.
func (e Entry) Own() bool { return e.Kind == KindHost || e.Kind == KindProgram }

// Has reports whether the cache has an image under a shared name.
func (s *Store) Has(name string) (bool, error) {
	r, err := parseReference(name)
	if err != nil {
		return false, nil //nolint:nilerr // an invalid name has no record
	}
	have, err := s.names.lookUp(shared, r)
	return have.Key != "", err
}

// Fetched returns the shared names of all images that were pulled by a tag.
func (s *Store) Fetched() ([]string, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if e.digest != "" && e.Owner == shared && !strings.Contains(e.Name, "@") {
			names = append(names, e.Name)
		}
	}
	return names, nil
}
