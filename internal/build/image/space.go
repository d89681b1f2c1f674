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

// newBudget returns the bounds of the disk space for images, or nil if the cache is not shared.
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

// reserve reserves space for an image that an owner, or the administrator, fetches or builds.
// If necessary it removes the images that were used least recently.
//
// Exhausted: there is not enough space, for this owner or for all.
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

// takeBytes counts bytes before they are written. Exhausted: they exceed a limit.
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

// retryWithRoom calls reserve, and on Exhausted once more after it has freed space.
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

// charged is an image that counts against the limits, with the owners whose share it uses.
type charged struct {
	Entry

	owners []string
}

// measureUsage measures the images in the cache. Templates do not count. In a shared cache,
// imported images do not count either: an owner must not be able to displace images that
// cannot be fetched again.
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

// chargedOwners returns the owners whose share an image uses: all that have a name for it or
// have built it, or none if it has a shared name.
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

// makeRoom removes images until bytes fit, least recently used first: images of the owner if
// its share is used up, then images of all owners.
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

// shortage is how many bytes are missing in an owner's share, in the cache, and on the disk.
type shortage struct{ own, all, disk int64 }

func (l *shortage) isGeneral() bool { return l.all > 0 || l.disk > 0 }

// measureShortage returns the shortage for bytes of an owner.
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

// removeForOwner frees the part of an owner's share that an image uses. It removes the image,
// or only the owner's names for it if other owners use it too.
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

// removeUnused removes an image that is not in use, if that frees its space. The image of a
// stopped sandbox has a second hard link, so removing it would free nothing.
func (m *spaceManager) removeUnused(c charged, l *shortage) (bool, error) {
	if c.Kind == KindProgram && time.Since(c.Used) < grace {
		return false, nil // it may be in use although it is not open
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

// trackFetch marks a layer as being fetched until the caller calls done.
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

// blobName returns a name that a complete layer and its incomplete file have in common.
func blobName(path string) string {
	name := filepath.Base(path)
	return name[:len(name)-len(filepath.Ext(name))]
}

// unusedBlobs returns layers that this process is not fetching: incomplete layers of
// interrupted pulls, and complete layers whose image is not built yet.
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
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() { // else it was removed meanwhile
			list = append(list, info)
		}
	}
	return list, nil
}

// removeBlobs removes layers that no process fetches or unpacks until there is enough space.
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

// sizeOnDisk returns how many bytes a file uses on the disk; 0 for nil.
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

// trimToSize removes images while the cache exceeds its size. Images that were used within
// the grace period are kept.
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
