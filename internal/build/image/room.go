package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// reservation is disk space that is reserved for an image in the making. The zero room bounds
// nothing.
type reservation struct {
	store *Store
	owner string
	space *diskspace.Reservation
}

// newBudget returns the bounds of the disk that images take, if the cache is shared.
func (s *Store) newBudget() *diskspace.Budget {
	if s.o.Sharing == nil {
		return nil
	}
	return diskspace.NewBudget(diskspace.Options{
		Name: "images", Disk: s.o.Sharing.Disk, Total: s.o.CacheSize, PerOwner: s.o.Sharing.OwnerSize,
		Hint: "use smaller images, or delete sandboxes whose images you no longer need; the administrator sets image.cache_size and image.owner_cache_size",
		Held: func(owner string) (own, all int64, err error) {
			u, err := s.measureUsage()
			return u.owners[owner], u.all, err
		},
	})
}

// reserveSpace reserves space for what an owner, or the administrator, fetches or builds. It
// removes images that were used least recently if necessary.
//
// Exhausted: there is no room, for this owner or at all.
func (s *Store) reserveSpace(owner string, bytes int64) (reservation, error) {
	if s.space == nil {
		return reservation{}, nil
	}
	r := reservation{store: s, owner: owner}
	err := s.retryWithRoom(owner, bytes, func() (err error) {
		if owner == shared {
			r.space, err = s.space.ReserveUnshared(owner, bytes)
		} else {
			r.space, err = s.space.Reserve(owner, bytes)
		}
		return err
	})
	if err != nil {
		return reservation{}, err
	}
	return r, nil
}

// takeBytes is called before bytes are written. Exhausted: they may not be.
func (m reservation) takeBytes(bytes int64) error {
	if m.space == nil {
		return nil
	}
	return m.store.retryWithRoom(m.owner, bytes, func() error { return m.space.Write(bytes) })
}

func (m reservation) release() {
	if m.space != nil {
		m.space.Release()
	}
}

// retryWithRoom tries to reserve bytes, and once more after having made room for them.
func (s *Store) retryWithRoom(owner string, bytes int64, reserve func() error) error {
	err := reserve()
	if !errors.Is(err, sandpit.Exhausted) {
		return err
	}
	if err := s.makeRoom(owner, bytes); err != nil {
		return err
	}
	return reserve()
}

// usage is the disk space that counts against CacheSize.
type usage struct {
	images []charged // used least recently first
	all    int64
	exempt int64 // bytes of images that do not count
	owners map[string]int64
}

// charged is an image that counts, with the owners whose share it counts against.
type charged struct {
	Entry

	owners []string
}

// measureUsage looks through the cache. Templates do not count. In a shared cache, imported
// images do not count either: an owner must not be able to displace what cannot be fetched
// again.
func (s *Store) measureUsage() (usage, error) {
	u := usage{owners: make(map[string]int64)}
	images, err := s.listImages()
	if err != nil {
		return u, err
	}
	names, err := s.listNames()
	if err != nil {
		return u, err
	}
	for _, e := range images {
		if isTemplate(names[e.ID]) || s.o.Sharing != nil && isImported(names[e.ID]) {
			u.exempt += e.Size
			continue
		}
		c := charged{e, chargedOwners(e, names[e.ID])}
		u.images = append(u.images, c)
		u.all += e.Size
		for _, owner := range c.owners {
			u.owners[owner] += e.Size
		}
	}
	slices.SortFunc(u.images, func(a, b charged) int { return a.Used.Compare(b.Used) })
	blobs, err := s.unusedBlobs()
	for _, b := range blobs {
		u.all += b.Size()
	}
	return u, err
}

// isImported reports whether one of the names of an image was given to it by an import.
func isImported(names []nameRecord) bool {
	return slices.ContainsFunc(names, func(p nameRecord) bool {
		r, err := parseReference(p.Name)
		return err == nil && p.isImported(r)
	})
}

// chargedOwners returns the owners whose share an image counts against: all that have a
// name for it or have built it, but none if a shared name means it.
func chargedOwners(e Entry, names []nameRecord) []string {
	var owners []string
	if e.maker != shared {
		owners = append(owners, e.maker)
	}
	for _, p := range names {
		if p.Owner == shared {
			return nil
		}
		owners = append(owners, p.Owner)
	}
	slices.Sort(owners)
	return slices.Compact(owners)
}

// makeRoom removes images until bytes fit, those used least recently first: if an owner is
// at its share, that owner's, then all owners'.
func (s *Store) makeRoom(owner string, bytes int64) error {
	s.clearing.Lock()
	defer s.clearing.Unlock()
	u, err := s.measureUsage()
	if err != nil {
		return err
	}
	l, err := s.measureShortage(u, owner, bytes)
	if err != nil {
		return err
	}
	if err := s.removeBlobs(&l); err != nil {
		return err
	}
	for _, c := range u.images {
		if l.own > 0 && slices.Contains(c.owners, owner) {
			if err := s.removeForOwner(c, owner, &l); err != nil {
				return err
			}
		}
	}
	for _, c := range u.images {
		if l.isGeneral() {
			if _, err := s.removeUnused(c, &l); err != nil {
				return err
			}
		}
	}
	return nil
}

// shortage is how many bytes are missing: of an owner's share, of the cache, of the disk.
type shortage struct{ own, all, disk int64 }

func (l *shortage) isGeneral() bool { return l.all > 0 || l.disk > 0 }

// measureShortage returns what is missing for bytes of an owner.
func (s *Store) measureShortage(u usage, owner string, bytes int64) (shortage, error) {
	own, all := s.space.Reserved(owner)
	disk, err := s.o.Sharing.Disk.Missing(bytes)
	l := shortage{disk: disk}
	if s.o.CacheSize > 0 {
		l.all = u.all + all + bytes - s.o.CacheSize
	}
	if most := s.o.Sharing.OwnerSize; most > 0 && owner != shared {
		l.own = u.owners[owner] + own + bytes - most
	}
	return l, err
}

// removeForOwner frees what an image takes of an owner's share. The image is removed, or
// only the owner's names for it if it counts for other owners too.
func (s *Store) removeForOwner(c charged, owner string, l *shortage) error {
	if len(c.owners) == 1 {
		removed, err := s.removeUnused(c, l)
		if removed {
			l.own -= c.Size
		}
		return err
	}
	if c.maker == owner {
		return nil
	}
	l.own -= c.Size
	// It takes a moment, and the caller waits for a write to the disk anyway.
	return s.removeNames(context.Background(), func(p nameRecord) bool { return p.Owner == owner && p.Key == c.ID })
}

// removeUnused removes an image that is not in use and whose removal frees its space. The
// image of a stopped sandbox has a second name on the disk and would free nothing.
func (s *Store) removeUnused(c charged, l *shortage) (bool, error) {
	if c.Kind == KindProgram && time.Since(c.Used) < grace {
		return false, nil // it may be in use though it is not open
	}
	var st unix.Stat_t
	err := unix.Lstat(s.imagePath(c.ID), &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Nlink > 1 {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: s.imagePath(c.ID), Err: err}
	}
	removed, err := s.removeUnlocked(c.Entry, false)
	if removed {
		l.all -= c.Size
		l.disk -= c.Size
	}
	return removed, err
}

// inFlight are the layers that this process is fetching.
type inFlight struct {
	mu    sync.Mutex
	paths map[string]int
}

// trackFetch counts a layer as being fetched until done is called.
func (s *Store) trackFetch(path string) (done func()) {
	add := func(n int) {
		s.inFlight.mu.Lock()
		defer s.inFlight.mu.Unlock()
		name := blobName(path)
		if s.inFlight.paths[name] += n; s.inFlight.paths[name] == 0 {
			delete(s.inFlight.paths, name)
		}
	}
	add(1)
	return func() { add(-1) }
}

// blobName is the same for a layer and for its beginning.
func blobName(path string) string {
	name := filepath.Base(path)
	return name[:len(name)-len(filepath.Ext(name))]
}

// unusedBlobs returns layers that this process is not fetching: the beginnings that broken
// pulls have left, and layers that wait for their image.
func (s *Store) unusedBlobs() ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	s.inFlight.mu.Lock()
	defer s.inFlight.mu.Unlock()
	var list []fs.FileInfo
	for _, e := range entries {
		if !isBlob(e.Name()) || s.inFlight.paths[blobName(e.Name())] > 0 {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() { // else it is just gone
			list = append(list, info)
		}
	}
	return list, nil
}

// removeBlobs removes layers that no process fetches or unpacks, as far as space is
// missing.
func (s *Store) removeBlobs(l *shortage) error {
	blobs, err := s.unusedBlobs()
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if !l.isGeneral() {
			return nil
		}
		removed, err := removeIfFree(filepath.Join(s.dir, b.Name()), time.Time{})
		if err != nil {
			return err
		}
		if removed {
			l.all -= b.Size()
			l.disk -= b.Size()
		}
	}
	return nil
}

// sizeOnDisk returns how many bytes a file takes; 0 for nil.
func sizeOnDisk(f *os.File) int64 {
	if f == nil {
		return 0
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0 // it is counted as it is written
	}
	return st.Blocks * 512
}

// trimToSize makes room when the cache has become larger than it may. What was used a
// moment ago stays in any case.
func (s *Store) trimToSize(ctx context.Context) error {
	if s.o.CacheSize <= 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	u, err := s.measureUsage()
	if err != nil {
		return err
	}
	l := shortage{all: u.all - s.o.CacheSize}
	if s.o.Sharing == nil {
		l.all += u.exempt
	}
	for _, c := range u.images {
		if l.all <= 0 || time.Since(c.Used) < grace {
			return nil
		}
		if _, err := s.removeUnused(c, &l); err != nil {
			return err
		}
	}
	return nil
}
