package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Entry is one image of the cache under one of its names.
type Entry struct {
	// Name is what Resolve finds it by: a reference. "" if it has none.
	Name string `json:"name,omitempty"`
	// Owner is whose name that is; "" if it means the image to all owners.
	Owner string `json:"owner,omitempty"`
	// ID names it in the cache: 64 lower-case hexadecimal digits.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Source is what it was made from, for people.
	Source string `json:"source,omitempty"`
	// Digest is that of the manifest, if it has one.
	Digest   string `json:"digest,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Size is in bytes on disk.
	Size int64 `json:"size"`
	// Created is when the image was built, as far as it says so.
	Created time.Time `json:"created,omitzero"`
	// Used is when a sandbox was last made from it, give or take ten seconds.
	Used time.Time `json:"used"`

	digest string // that the registry had under the name
	maker  string // owner of the build that made it; "" if it was fetched, or the administrator's
}

// List returns what is in the cache, by name, those without one last.
func (s *Store) List() ([]Entry, error) {
	names, err := s.listNames()
	if err != nil {
		return nil, err
	}
	images, err := s.listImages()
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

// sortEntries sorts by name, those without one last.
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

// listNames returns what is remembered of names, by image.
func (s *Store) listNames() (map[string][]nameRecord, error) {
	files, err := s.listFiles(nameSuffix)
	if err != nil {
		return nil, err
	}
	names := map[string][]nameRecord{}
	for _, file := range files {
		var p nameRecord
		if err := s.readRecord(file, &p); err != nil {
			return nil, err
		}
		r, err := parseReference(p.Name)
		if err == nil && nameFile(p.Owner, r) == file && isKey(p.Key) {
			names[p.Key] = append(names[p.Key], p)
		}
	}
	return names, nil
}

// listFiles returns the names of the cache's files with an ending.
func (s *Store) listFiles(suffix string) ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("look into the image cache: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// listImages returns the finished images.
func (s *Store) listImages() ([]Entry, error) {
	files, err := s.listFiles(imageSuffix)
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, file := range files {
		key := strings.TrimSuffix(file, imageSuffix)
		if !isKey(key) {
			continue
		}
		e, err := s.readEntry(key)
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

// readEntry describes a finished image, without using it.
func (s *Store) readEntry(key string) (Entry, error) {
	f, err := os.OpenFile(s.imagePath(key), os.O_RDONLY|unix.O_NOFOLLOW, 0)
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
	case sandpit.CodeOf(err) == sandpit.Internal: // listed all the same, so that it can be removed
		e.Source = "damaged"
	default:
		return e, err
	}
	return e, nil
}

// Remove takes a shared name, an ID or digest (at least six digits of it), or the path an
// image was made from. A name is forgotten; its image goes with the last one, those of
// owners included. The entries removed are returned. Sandboxes that run from an image go
// on.
//
// NotFound: there is none. Invalid: what was given stands for several images.
func (s *Store) Remove(ctx context.Context, text string) ([]Entry, error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	found := matchEntries(list, text)
	if len(found) == 0 {
		if gone, err := s.removeSharedName(ctx, text); gone || err != nil {
			return nil, err
		}
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "image %s: it is not in the cache", quoteName(text)), "see: sandpit image ls --all")
	}
	byName := found[0].Name != "" && len(found) == 1 && isName(text, found[0])
	for _, e := range found[1:] {
		if e.ID != found[0].ID {
			return nil, sandpit.Errorf(sandpit.Invalid, "image %s: several images have an ID that begins so", quoteName(text))
		}
	}
	others := slices.ContainsFunc(list, func(e Entry) bool {
		return e.ID == found[0].ID && (e.Name != found[0].Name || e.Owner != found[0].Owner)
	})
	if byName && others {
		return found, s.removeNames(ctx, func(p nameRecord) bool { return p.Owner == shared && shortenName(p.Name) == found[0].Name })
	}
	if err := os.Remove(s.imagePath(found[0].ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w", quoteName(text), withoutPath(err))
	}
	return found, s.removeOrphanRecords(ctx)
}

// removeSharedName forgets a shared name whose image is gone. It reports false if there is none.
func (s *Store) removeSharedName(ctx context.Context, text string) (bool, error) {
	r, err := parseReference(text)
	if err != nil {
		return false, nil //nolint:nilerr // what is no name is not there
	}
	have, err := s.lookUpRecord(shared, r)
	if err != nil || have.Name == "" {
		return false, err
	}
	return true, s.removeNames(ctx, func(p nameRecord) bool { return p.Owner == shared && p.Name == have.Name })
}

func isName(text string, e Entry) bool {
	r, err := parseReference(text)
	return err == nil && r.shortName() == e.Name && e.Owner == shared
}

// matchEntries returns the entries that a text stands for.
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

// removeNames removes the names that are to be dropped. One that somebody is about to
// renew stays.
func (s *Store) removeNames(ctx context.Context, drop func(nameRecord) bool) error {
	files, err := s.listFiles(nameSuffix)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, s.removeRecord(ctx, file, func() (bool, error) {
			var p nameRecord
			err := s.readRecord(file, &p)
			return drop(p), err
		}))
	}
	return errors.Join(errs...)
}

// removeRecord removes a record if it is to be dropped and nobody is writing it.
func (s *Store) removeRecord(ctx context.Context, file string, drop func() (bool, error)) error {
	if gone, err := drop(); err != nil || !gone {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	f, err := s.lockNew(ctx, file)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // it is being written
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // gives up the lock
	gone, err := drop()
	if err == nil && gone {
		if err = os.Remove(filepath.Join(s.dir, file)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// removeOrphanRecords removes the records of images that are not there.
func (s *Store) removeOrphanRecords(ctx context.Context) error {
	missing := func(key string) (bool, error) {
		if !isKey(key) {
			return true, nil
		}
		there, err := s.existingKey(key)
		return there == "", err
	}
	names, err1 := s.listFiles(nameSuffix)
	indexes, err2 := s.listFiles(indexSuffix)
	origins, err3 := s.listFiles(originSuffix)
	errs := []error{err1, err2, err3}
	for _, file := range slices.Concat(names, indexes, origins) {
		errs = append(errs, s.removeRecord(ctx, file, func() (bool, error) {
			var e struct{ Key string }
			if err := s.readRecord(file, &e); err != nil {
				return false, err
			}
			return missing(e.Key)
		}))
	}
	return errors.Join(errs...)
}

// Own reports whether e is an image that sandpit makes for itself.
func (e Entry) Own() bool { return e.Kind == KindHost || e.Kind == KindProgram }

// Has reports whether the cache has an image under a shared name.
func (s *Store) Has(name string) (bool, error) {
	r, err := parseReference(name)
	if err != nil {
		return false, nil //nolint:nilerr // what is no name is not there
	}
	have, err := s.lookUpRecord(shared, r)
	return have.Key != "", err
}

// Fetched returns the shared names of all images that came from a registry by a tag.
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
