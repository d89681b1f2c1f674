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
	manager *spaceManager
	owner   string
	space   *diskspace.Reservation
}

// spaceManager bounds the disk space that images take, for each owner and for the cache as a
// whole. It removes images that were used least recently.
type spaceManager struct {
	cache     *cacheDir
	names     *nameTable
	sharing   *Sharing // nil if one user has the cache
	cacheSize int64    // bytes; 0 for no bound

	budget   *diskspace.Budget // nil: nothing is reserved
	clearing sync.Mutex        // held while room is made
	inFlight inFlight
}

func newSpaceManager(cache *cacheDir, names *nameTable, o Options) *spaceManager {
	m := &spaceManager{cache: cache, names: names, sharing: o.Sharing, cacheSize: o.CacheSize}
	m.inFlight.paths = make(map[string]int)
	m.budget = m.newBudget()
	return m
}

// newBudget returns the bounds of the disk that images take, if the cache is shared.
func (m *spaceManager) newBudget() *diskspace.Budget {
	if m.sharing == nil {
		return nil
	}
	return diskspace.NewBudget(diskspace.Options{
		Name: "images", Disk: m.sharing.Disk, Total: m.cacheSize, PerOwner: m.sharing.OwnerSize,
		Hint: "use smaller images, or delete sandboxes whose images you no longer need; the administrator sets image.cache_size and image.owner_cache_size",
		Held: func(owner string) (own, all int64, err error) {
			u, err := m.measureUsage()
			return u.owners[owner], u.all, err
		},
	})
}

// reserveSpace reserves space for what an owner, or the administrator, fetches or builds. It
// removes images that were used least recently if necessary.
//
// Exhausted: there is no room, for this owner or at all.
func (m *spaceManager) reserve(owner string, bytes int64) (reservation, error) {
	if m.budget == nil {
		return reservation{}, nil
	}
	r := reservation{manager: m, owner: owner}
	err := m.retryWithRoom(owner, bytes, func() (err error) {
		if owner == shared {
			r.space, err = m.budget.ReserveUnshared(owner, bytes)
		} else {
			r.space, err = m.budget.Reserve(owner, bytes)
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
	return m.manager.retryWithRoom(m.owner, bytes, func() error { return m.space.Write(bytes) })
}

func (m reservation) release() {
	if m.space != nil {
		m.space.Release()
	}
}

// retryWithRoom tries to reserve bytes, and once more after having made room for them.
func (m *spaceManager) retryWithRoom(owner string, bytes int64, reserve func() error) error {
	err := reserve()
	if !errors.Is(err, sandpit.Exhausted) {
		return err
	}
	if err := m.makeRoom(owner, bytes); err != nil {
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
func (m *spaceManager) measureUsage() (usage, error) {
	u := usage{owners: make(map[string]int64)}
	images, err := m.cache.listImages()
	if err != nil {
		return u, err
	}
	names, err := m.names.list()
	if err != nil {
		return u, err
	}
	for _, e := range images {
		if isTemplate(names[e.ID]) || m.sharing != nil && isImported(names[e.ID]) {
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
	blobs, err := m.unusedBlobs()
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
func (m *spaceManager) makeRoom(owner string, bytes int64) error {
	m.clearing.Lock()
	defer m.clearing.Unlock()
	u, err := m.measureUsage()
	if err != nil {
		return err
	}
	l, err := m.measureShortage(u, owner, bytes)
	if err != nil {
		return err
	}
	if err := m.removeBlobs(&l); err != nil {
		return err
	}
	for _, c := range u.images {
		if l.own > 0 && slices.Contains(c.owners, owner) {
			if err := m.removeForOwner(c, owner, &l); err != nil {
				return err
			}
		}
	}
	for _, c := range u.images {
		if l.isGeneral() {
			if _, err := m.removeUnused(c, &l); err != nil {
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
func (m *spaceManager) measureShortage(u usage, owner string, bytes int64) (shortage, error) {
	own, all := m.budget.Reserved(owner)
	disk, err := m.sharing.Disk.Missing(bytes)
	l := shortage{disk: disk}
	if m.cacheSize > 0 {
		l.all = u.all + all + bytes - m.cacheSize
	}
	if most := m.sharing.OwnerSize; most > 0 && owner != shared {
		l.own = u.owners[owner] + own + bytes - most
	}
	return l, err
}

// removeForOwner frees what an image takes of an owner's share. The image is removed, or
// only the owner's names for it if it counts for other owners too.
func (m *spaceManager) removeForOwner(c charged, owner string, l *shortage) error {
	if len(c.owners) == 1 {
		removed, err := m.removeUnused(c, l)
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
	return m.names.remove(context.Background(), func(p nameRecord) bool { return p.Owner == owner && p.Key == c.ID })
}

// removeUnused removes an image that is not in use and whose removal frees its space. The
// image of a stopped sandbox has a second name on the disk and would free nothing.
func (m *spaceManager) removeUnused(c charged, l *shortage) (bool, error) {
	if c.Kind == KindProgram && time.Since(c.Used) < grace {
		return false, nil // it may be in use though it is not open
	}
	var st unix.Stat_t
	err := unix.Lstat(m.cache.imagePath(c.ID), &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Nlink > 1 {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: m.cache.imagePath(c.ID), Err: err}
	}
	removed, err := m.cache.removeUnlocked(c.Entry, false)
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
func (m *spaceManager) trackFetch(path string) (done func()) {
	add := func(n int) {
		m.inFlight.mu.Lock()
		defer m.inFlight.mu.Unlock()
		name := blobName(path)
		if m.inFlight.paths[name] += n; m.inFlight.paths[name] == 0 {
			delete(m.inFlight.paths, name)
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
func (m *spaceManager) unusedBlobs() ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(m.cache.dir)
	if err != nil {
		return nil, err
	}
	m.inFlight.mu.Lock()
	defer m.inFlight.mu.Unlock()
	var list []fs.FileInfo
	for _, e := range entries {
		if !isBlob(e.Name()) || m.inFlight.paths[blobName(e.Name())] > 0 {
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
func (m *spaceManager) removeBlobs(l *shortage) error {
	blobs, err := m.unusedBlobs()
	if err != nil {
		return err
	}
	for _, b := range blobs {
		if !l.isGeneral() {
			return nil
		}
		removed, err := removeIfFree(filepath.Join(m.cache.dir, b.Name()), time.Time{})
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
func (m *spaceManager) trimToSize(ctx context.Context) error {
	if m.cacheSize <= 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	u, err := m.measureUsage()
	if err != nil {
		return err
	}
	l := shortage{all: u.all - m.cacheSize}
	if m.sharing == nil {
		l.all += u.exempt
	}
	for _, c := range u.images {
		if l.all <= 0 || time.Since(c.Used) < grace {
			return nil
		}
		if _, err := m.removeUnused(c, &l); err != nil {
			return err
		}
	}
	return nil
}
