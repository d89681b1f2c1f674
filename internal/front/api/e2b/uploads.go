package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// PathUpload accepts the files of a build. Its query is signed, so it needs no key.
const PathUpload = "/templates/files"

// The limits of uploads for builds. If there is no room, the least recently used uploads of
// the owner are removed, first those that were not used for a day.
const (
	maxUpload  = 1 << 30 // bytes of one, packed
	maxUploads = 4 << 30 // of all of an owner's
	uploadTime = time.Hour
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

var filesHashPattern = pattern.New(`^[0-9a-f]{32,128}$`)

// uploadStore holds files that clients have uploaded for builds, in a directory of its own:
// one archive for each owner and hash. All methods may be called concurrently.
type uploadStore struct {
	dir   string
	key   []byte            // signs links, which are valid until the server ends
	space *diskspace.Budget // of archives, and of what is unpacked
	slots *fairshare.Pool   // uploads that are being received

	mu       sync.Mutex
	archives map[archiveName]*archive
	coming   map[archiveName]*pendingUpload
}

// archiveName names an archive by its owner and hash.
type archiveName struct{ owner, hash string }

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

// newUploads returns the store in a directory; "" accepts no uploads. With a nil budget, there
// are no limits of disk space.
func newUploads(dir string, space *diskspace.Budget) *uploadStore {
	if space == nil {
		space = diskspace.NewBudget(diskspace.Options{Name: "files of builds"})
	}
	u := &uploadStore{
		dir: dir, key: make([]byte, 32), space: space, archives: make(map[archiveName]*archive), coming: make(map[archiveName]*pendingUpload),
		slots: fairshare.NewPool(fairshare.Options{
			Name: "uploads at a time", Total: maxUploading, PerOwner: maxUploadingOf, MaxWaiting: uploadsWaiting, Hint: "wait for earlier uploads",
		}),
	}
	_, _ = rand.Read(u.key) // never fails: crypto/rand ends the program instead
	if dir != "" {
		u.loadArchives()
	}
	return u
}

const archiveSuffix = ".tar"

// ownerDir returns the directory of an owner's archives.
func (u *uploadStore) ownerDir(owner string) string {
	return filepath.Join(u.dir, hex.EncodeToString([]byte(owner)))
}

func (u *uploadStore) archivePath(n archiveName) string {
	return filepath.Join(u.ownerDir(n.owner), n.hash+archiveSuffix)
}

// loadArchives finds the archives of an earlier server process, and removes everything else
// that it left.
func (u *uploadStore) loadArchives() {
	dirs, _ := os.ReadDir(u.dir) // without the directory there are none
	for _, p := range dirs {
		dir := filepath.Join(u.dir, p.Name())
		owner, err := hex.DecodeString(p.Name())
		files, readErr := os.ReadDir(dir)
		if err != nil || readErr != nil || !api.IsOwner(string(owner)) {
			_ = os.RemoveAll(dir) // if this fails, the file only takes up space
			continue
		}
		for _, f := range files {
			hash, isArchive := strings.CutSuffix(f.Name(), archiveSuffix)
			info, err := f.Info()
			if !isArchive || err != nil || !filesHashPattern().MatchString(hash) || !info.Mode().IsRegular() {
				_ = os.Remove(filepath.Join(dir, f.Name())) // as above
				continue
			}
			space, err := u.space.Reserve(string(owner), 0)
			if err != nil {
				_ = os.Remove(filepath.Join(dir, f.Name())) // as above; the disk is full
				continue
			}
			space.Settle(info.Size())
			u.archives[archiveName{string(owner), hash}] = &archive{space: space, used: info.ModTime()}
		}
	}
}

// hasArchive reports whether an archive exists, and marks it as used.
func (u *uploadStore) hasArchive(owner, hash string) bool {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.archives[archiveName{owner, hash}]
	if a == nil || os.Chtimes(u.archivePath(archiveName{owner, hash}), now, now) != nil {
		return false
	}
	a.used = now
	return true
}

// uploadLink is the right to upload one archive without an API key.
type uploadLink struct {
	archiveName

	// key is the ID of the API key that asked for the link, which ends with it; "" for a
	// caller without a key.
	key string
	// until is when the link expires, in seconds since 1970.
	until string
}

// signLink returns the query of a signed link.
func (u *uploadStore) signLink(client api.Principal, hash string, until time.Time) string {
	l := uploadLink{archiveName{client.Owner, hash}, client.KeyID, strconv.FormatInt(until.Unix(), 10)}
	return "owner=" + base64.RawURLEncoding.EncodeToString([]byte(l.owner)) + "&hash=" + l.hash +
		"&key=" + base64.RawURLEncoding.EncodeToString([]byte(l.key)) + "&until=" + l.until + "&signature=" + u.linkSignature(l)
}

func (u *uploadStore) linkSignature(l uploadLink) string {
	mac := hmac.New(sha256.New, u.key)
	_, _ = mac.Write([]byte(l.owner + "\n" + l.hash + "\n" + l.key + "\n" + l.until)) // never fails
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// checkLink returns the link of a request. The caller must check whether its API key still
// exists. Unauthenticated.
func (u *uploadStore) checkLink(r *http.Request, now time.Time) (uploadLink, error) {
	query := r.URL.Query()
	owner, ownerErr := base64.RawURLEncoding.DecodeString(query.Get("owner"))
	key, keyErr := base64.RawURLEncoding.DecodeString(query.Get("key"))
	l := uploadLink{archiveName{string(owner), query.Get("hash")}, string(key), query.Get("until")}
	if ownerErr != nil || keyErr != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(u.linkSignature(l))) {
		return uploadLink{}, sandpit.Errorf(sandpit.Unauthenticated, "invalid signature")
	}
	if seconds, err := strconv.ParseInt(l.until, 10, 64); err != nil || now.Unix() > seconds {
		return uploadLink{}, sandpit.Errorf(sandpit.Unauthenticated, "signature is already expired")
	}
	return l, nil
}

// uploadHandler receives the files of builds.
type uploadHandler struct {
	uploads *uploadStore
	keys    *api.Keys
}

// receiveUpload stores an archive, which must be complete and as long as announced. It counts
// as a request of the owner of the link.
func (h *uploadHandler) receiveUpload(w http.ResponseWriter, r *http.Request) error {
	l, err := h.uploads.checkLink(r, time.Now())
	switch {
	case err != nil:
		return err
	case r.ContentLength < 0:
		return sandpit.Errorf(sandpit.Invalid, "Content-Length is missing")
	case r.ContentLength > maxUpload:
		return sandpit.Errorf(sandpit.Invalid, "%d bytes, want at most %d", r.ContentLength, maxUpload)
	}
	n := l.archiveName
	attached, release, err := h.keys.Attach(r.Context(), l.key)
	if err != nil {
		return err
	}
	defer release()
	leave, err := api.CountRequest(r, n.owner)
	if err != nil {
		return err
	}
	defer leave()
	waiting, cancel := context.WithTimeoutCause(attached, uploadWait,
		sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "too many uploads"), "try again later"))
	defer cancel()
	// In this order, so that an upload does not hold a slot while it waits for its turn.
	done, err := h.uploads.waitForTurn(waiting, n)
	if err != nil {
		return err
	}
	defer done()
	slot, err := h.uploads.slots.Acquire(waiting, n.owner, 1)
	if err != nil {
		return err
	}
	defer slot.Release()
	body := &pacedReader{
		ctx: attached, r: http.MaxBytesReader(w, r.Body, r.ContentLength), control: http.NewResponseController(w), end: time.Now().Add(uploadTime),
	}
	defer body.clearDeadline()
	interrupt := context.AfterFunc(attached, body.interruptRead)
	defer interrupt()
	return h.uploads.storeArchive(n, body, r.ContentLength)
}

// waitForTurn waits until no other upload of the archive is being received. Others then wait
// until done is called.
func (u *uploadStore) waitForTurn(ctx context.Context, n archiveName) (done func(), err error) {
	u.mu.Lock()
	one := u.coming[n]
	if one == nil {
		one = &pendingUpload{turn: make(chan struct{}, 1)}
		u.coming[n] = one
	}
	one.users++
	u.mu.Unlock()
	leave := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(u.coming, n)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() {
			<-one.turn
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// pacedReader is a body that must keep arriving, until its context ends.
type pacedReader struct {
	ctx     context.Context //nolint:containedctx // of the upload
	r       io.Reader
	control *http.ResponseController
	end     time.Time // when all of it must have come
	left    int       // of the current piece
}

// Read implements io.Reader.
func (p *pacedReader) Read(b []byte) (int, error) {
	if p.left <= 0 {
		until := time.Now().Add(uploadPause)
		if until.After(p.end) {
			until = p.end
		}
		_ = p.control.SetReadDeadline(until) // connections without deadlines need none
		p.left = uploadPiece
	}
	if p.ctx.Err() != nil { // after the deadline was set, which may have replaced that of interrupt
		return 0, context.Cause(p.ctx)
	}
	n, err := p.r.Read(b)
	p.left -= n
	if p.ctx.Err() != nil {
		return n, context.Cause(p.ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = sandpit.Errorf(sandpit.Timeout, "the upload is too slow")
	}
	return n, err
}

// interruptRead ends a pending read.
func (p *pacedReader) interruptRead() { _ = p.control.SetReadDeadline(time.Unix(1, 0)) } // as above

// clearDeadline clears the deadline of the connection.
func (p *pacedReader) clearDeadline() { _ = p.control.SetReadDeadline(time.Time{}) }

// storeArchive stores an archive, after it has removed others to make room.
func (u *uploadStore) storeArchive(n archiveName, from io.Reader, size int64) error {
	dir := u.ownerDir(n.owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	space, err := u.makeRoom(n.owner, size)
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

func (u *uploadStore) writeArchive(n archiveName, from io.Reader, size int64, space *diskspace.Reservation) error {
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
func (u *uploadStore) makeRoom(owner string, size int64) (*diskspace.Reservation, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n, a := range u.archives {
		if n.owner == owner && a.users == 0 && time.Since(a.used) >= uploadAge {
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
func (u *uploadStore) sizeOf(owner string) (size int64) {
	for n, a := range u.archives {
		if n.owner == owner {
			size += a.space.Bytes()
		}
	}
	return size
}

// oldestOf returns the least recently used archive of an owner. The lock is held.
func (u *uploadStore) oldestOf(owner string) (oldest archiveName, found bool) {
	for n, a := range u.archives {
		if n.owner == owner && a.users == 0 && (!found || a.used.Before(u.archives[oldest].used)) {
			oldest, found = n, true
		}
	}
	return oldest, found
}

// removeArchive removes an archive. The lock is held.
func (u *uploadStore) removeArchive(n archiveName) {
	if err := os.Remove(u.archivePath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // it still takes up space
	}
	u.archives[n].space.Release()
	delete(u.archives, n)
}
