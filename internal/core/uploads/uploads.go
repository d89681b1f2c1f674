// Package uploads stores the files that clients of other vendors' APIs upload for builds, until
// builds copy from them.
package uploads

import (
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// The limits of uploads for builds. If there is no room, the least recently used uploads of
// the owner are removed, first those that were not used for a day.
const (
	MaxBytes   = 1 << 30 // bytes of one, packed
	maxUploads = 4 << 30 // of all of an owner's
	// UploadTime is how long an upload may take.
	UploadTime = time.Hour
	uploadAge  = 24 * time.Hour
	// An upload must deliver uploadPiece bytes in each uploadPause.
	uploadPiece = 256 << 10
	uploadPause = 30 * time.Second
	// maxUploading is how many uploads are received at a time, and maxUploadingOf how many of
	// one owner. Others wait for up to uploadWait, at most uploadsWaiting of each owner.
	maxUploading   = 16
	maxUploadingOf = 4
	uploadsWaiting = 200
	uploadWait     = 10 * time.Minute
)

// hashPattern is the form of hashes.
var hashPattern = pattern.New(`^[0-9a-f]{32,128}$`)

// Store holds files that clients have uploaded for builds, in a directory of its own:
// one archive for each owner and hash. All methods may be called concurrently.
type Store struct {
	dir     string
	isOwner func(string) bool
	space   *diskspace.Budget // of archives, and of what is unpacked
	slots   *fairshare.Pool   // uploads that are being received

	mu       sync.Mutex
	archives map[Name]*archive
	coming   map[Name]*pendingUpload
	sets     map[string]*PartSet // by ID
}

// Options configure a Store.
type Options struct {
	// Dir is where the files are. Default: no uploads are accepted.
	Dir string
	// Space limits the disk space. Default: no limit.
	Space *diskspace.Budget
	// IsOwner reports whether a name is that of an owner. Default: every name is.
	IsOwner func(name string) bool
}

// IsHash reports whether a text can be the hash of an archive.
func IsHash(text string) bool { return hashPattern().MatchString(text) }

// Name names an archive by its owner and hash.
type Name struct{ Owner, Hash string }

// archive is a stored archive.
type archive struct {
	space *diskspace.Reservation
	used  time.Time
	users int // builds that unpack it
}

// pendingUpload is an upload that is being received, with others of the same archive that wait
// for it.
type pendingUpload struct {
	turn  chan struct{} // held by the upload that is being received
	users int
}

// New returns the store of a directory, with the archives that are in it.
func New(o Options) *Store {
	if o.Space == nil {
		o.Space = diskspace.NewBudget(diskspace.Options{Name: "files of builds"})
	}
	if o.IsOwner == nil {
		o.IsOwner = func(string) bool { return true }
	}
	u := &Store{
		dir: o.Dir, isOwner: o.IsOwner, space: o.Space, archives: make(map[Name]*archive), coming: make(map[Name]*pendingUpload), sets: make(map[string]*PartSet),
		slots: fairshare.NewPool(fairshare.Options{
			Name: "uploads at a time", Total: maxUploading, PerOwner: maxUploadingOf, MaxWaiting: uploadsWaiting, Hint: "wait for earlier uploads",
		}),
	}
	if o.Dir != "" {
		u.loadArchives()
	}
	return u
}

const archiveSuffix = ".tar"

// ownerDir returns the directory of an owner's archives.
func (u *Store) ownerDir(owner string) string {
	return filepath.Join(u.dir, hex.EncodeToString([]byte(owner)))
}

func (u *Store) archivePath(n Name) string {
	return filepath.Join(u.ownerDir(n.Owner), n.Hash+archiveSuffix)
}

// loadArchives finds the archives of an earlier server process, and removes everything else
// that it left.
func (u *Store) loadArchives() {
	dirs, _ := os.ReadDir(u.dir) // without the directory there are no uploads
	for _, p := range dirs {
		dir := filepath.Join(u.dir, p.Name())
		owner, err := hex.DecodeString(p.Name())
		files, readErr := os.ReadDir(dir)
		if err != nil || readErr != nil || !u.isOwner(string(owner)) {
			_ = os.RemoveAll(dir) // if this fails, the file only takes up space
			continue
		}
		for _, f := range files {
			hash, isArchive := strings.CutSuffix(f.Name(), archiveSuffix)
			info, err := f.Info()
			if !isArchive || err != nil || !IsHash(hash) || !info.Mode().IsRegular() {
				_ = os.Remove(filepath.Join(dir, f.Name())) // as above
				continue
			}
			space, err := u.space.Reserve(string(owner), 0)
			if err != nil {
				_ = os.Remove(filepath.Join(dir, f.Name())) // as above; the disk is full
				continue
			}
			space.Settle(info.Size())
			u.archives[Name{string(owner), hash}] = &archive{space: space, used: info.ModTime()}
		}
	}
}

// HasArchive reports whether an archive exists, and marks it as used.
func (u *Store) HasArchive(n Name) bool {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.archives[n]
	if a == nil || os.Chtimes(u.archivePath(n), now, now) != nil {
		return false
	}
	a.used = now
	return true
}

// Archive describes an archive.
type Archive struct {
	Hash string
	Size int64
	Used time.Time
}

// List returns the archives of an owner, sorted by hash.
func (u *Store) List(owner string) (all []Archive) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n, a := range u.archives {
		if n.Owner == owner {
			all = append(all, Archive{n.Hash, a.space.Bytes(), a.used})
		}
	}
	slices.SortFunc(all, func(a, b Archive) int { return strings.Compare(a.Hash, b.Hash) })
	return all
}

// storeArchive stores an archive, after it has removed others to make room.
func (u *Store) storeArchive(n Name, from io.Reader, size int64) error {
	dir := u.ownerDir(n.Owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	space, err := u.makeRoom(n.Owner, size)
	if err != nil {
		return err
	}
	if err := u.writeArchive(n, from, size, space); err != nil {
		space.Release()
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if old := u.archives[n]; old != nil { // its file was replaced
		old.space.Release()
		u.archives[n] = &archive{space: space, used: time.Now(), users: old.users}
		return nil
	}
	u.archives[n] = &archive{space: space, used: time.Now()}
	return nil
}

func (u *Store) writeArchive(n Name, from io.Reader, size int64, space *diskspace.Reservation) error {
	f, err := atomicfile.New(u.archivePath(n), 0o600, atomicfile.Pattern("part-*"))
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	written, err := io.Copy(reservedWriter{f, space}, from)
	if err == nil && written != size {
		err = sandpit.Errorf(sandpit.Invalid, "received %d of %d bytes", written, size)
	}
	if err == nil {
		err = f.Rename()
	}
	if err = errors.Join(err, f.Discard()); err != nil {
		return err
	}
	space.Settle(size)
	return nil
}

// reservedWriter writes within a reservation of disk space.
type reservedWriter struct {
	io.Writer

	space *diskspace.Reservation
}

// Write implements io.Writer.
func (w reservedWriter) Write(p []byte) (int, error) {
	if err := w.space.Write(int64(len(p))); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// makeRoom reserves disk space for an archive of an owner. It removes the owner's old archives
// first, and then the least recently used ones until there is room.
//
// Exhausted: there is not enough room.
func (u *Store) makeRoom(owner string, size int64) (*diskspace.Reservation, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLateParts()
	for n, a := range u.archives {
		if n.Owner == owner && a.users == 0 && time.Since(a.used) >= uploadAge {
			u.removeArchive(n)
		}
	}
	for {
		err := sandpit.Errorf(sandpit.Exhausted, "the uploads of owner %.100q exceed %d bytes", owner, int64(maxUploads))
		if u.sizeOf(owner) <= maxUploads-size {
			var space *diskspace.Reservation
			if space, err = u.space.Reserve(owner, size); err == nil || sandpit.CodeOf(err) != sandpit.Exhausted {
				return space, err
			}
		}
		oldest, found := u.oldestOf(owner)
		if !found {
			return nil, err
		}
		u.removeArchive(oldest)
	}
}

// sizeOf returns how many bytes an owner's archives have. The lock is held.
func (u *Store) sizeOf(owner string) (size int64) {
	for n, a := range u.archives {
		if n.Owner == owner {
			size += a.space.Bytes()
		}
	}
	return size
}

// oldestOf returns the least recently used archive of an owner. The lock is held.
func (u *Store) oldestOf(owner string) (oldest Name, found bool) {
	for n, a := range u.archives {
		if n.Owner == owner && a.users == 0 && (!found || a.used.Before(u.archives[oldest].used)) {
			oldest, found = n, true
		}
	}
	return oldest, found
}

// removeArchive removes an archive. The lock is held.
func (u *Store) removeArchive(n Name) {
	if err := os.Remove(u.archivePath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // it still takes up space
	}
	u.archives[n].space.Release()
	delete(u.archives, n)
}
