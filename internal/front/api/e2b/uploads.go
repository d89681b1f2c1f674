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
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// PathUpload takes the files of a build. What it is asked for is in its query, signed: no
// key is needed.
const PathUpload = "/templates/files"

// The bounds of what clients upload for builds. Of an owner's uploads the oldest goes
// first, and so does what nobody has used for a day.
const (
	maxUpload  = 1 << 30 // bytes of one, packed
	maxUploads = 4 << 30 // of all of an owner's
	uploadTime = time.Hour
	uploadAge  = 24 * time.Hour
	// An upload has to bring uploadPiece bytes in each uploadPause.
	uploadPiece = 256 << 10
	uploadPause = 30 * time.Second
	// maxUploading is how many uploads come at a time, and maxUploadingOf how many of one
	// owner. Others wait for up to uploadWait, uploadsWaiting of each owner.
	maxUploading   = 16
	maxUploadingOf = 4
	uploadsWaiting = 200
	uploadWait     = 10 * time.Minute
)

var filesHashPattern = regexp.MustCompile(`^[0-9a-f]{32,128}$`)

// uploadStore are files that clients have sent for builds, in a directory of their own: an
// archive for each owner and hash. All methods may be called concurrently.
type uploadStore struct {
	dir   string
	key   []byte            // signs links, which end with the server
	space *diskspace.Budget // of archives, and of what is unpacked
	slots *fairshare.Pool   // uploads that come

	mu       sync.Mutex
	archives map[archiveName]*archive
	coming   map[archiveName]*pendingUpload
}

// archiveName is whose archive it is, and of what.
type archiveName struct{ owner, hash string }

// archive is one that is there.
type archive struct {
	space *diskspace.Reservation
	used  time.Time
	users int // builds that unpack it
}

// pendingUpload is one that comes, or waits for another one of the same archive.
type pendingUpload struct {
	turn  chan struct{} // held by the one that comes
	users int
}

// newUploads returns the uploads in a directory; "" takes none. A nil budget has no
// bounds.
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

// ownerDir is where an owner's archives are.
func (u *uploadStore) ownerDir(owner string) string {
	return filepath.Join(u.dir, hex.EncodeToString([]byte(owner)))
}

func (u *uploadStore) archivePath(n archiveName) string {
	return filepath.Join(u.ownerDir(n.owner), n.hash+archiveSuffix)
}

// loadArchives finds the archives of an earlier server, and removes what else it has left.
func (u *uploadStore) loadArchives() {
	places, _ := os.ReadDir(u.dir) // without it there are none
	for _, p := range places {
		dir := filepath.Join(u.dir, p.Name())
		owner, err := hex.DecodeString(p.Name())
		files, readErr := os.ReadDir(dir)
		if err != nil || readErr != nil || !api.IsOwner(string(owner)) {
			_ = os.RemoveAll(dir) // what stays is in nobody's way
			continue
		}
		for _, f := range files {
			hash, isArchive := strings.CutSuffix(f.Name(), archiveSuffix)
			info, err := f.Info()
			if !isArchive || err != nil || !filesHashPattern.MatchString(hash) || !info.Mode().IsRegular() {
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

// hasArchive reports whether an archive is there, which then stays for a while.
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

// uploadLink is the right to send one archive without an API key.
type uploadLink struct {
	archiveName

	// key is the ID of the API key that asked for the link, which ends with it; "" for a
	// caller without a key.
	key string
	// until is when the link expires, in seconds since 1970.
	until string
}

// signLink returns the query of a link.
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

// checkLink returns the link that a request was made with. Whether its API key still exists is
// for the caller to check. Unauthenticated.
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

// upload takes an archive, which must come as a whole and be as long as was said. It counts
// as a request of its owner's, whose link it is.
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
	// In this order: who waits for another upload of the same archive holds no slot.
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

// waitForTurn waits until no other upload of an archive comes, and has others wait until done.
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

// pacedReader is a body that has to keep coming, until its context ends.
type pacedReader struct {
	ctx     context.Context //nolint:containedctx // of the reading, which is all it is there for
	r       io.Reader
	control *http.ResponseController
	end     time.Time // when all of it must have come
	left    int       // of the piece that comes
}

// Read implements io.Reader.
func (p *pacedReader) Read(b []byte) (int, error) {
	if p.left <= 0 {
		until := time.Now().Add(uploadPause)
		if until.After(p.end) {
			until = p.end
		}
		_ = p.control.SetReadDeadline(until) // what cannot have one needs none
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

// interruptRead ends a read that waits.
func (p *pacedReader) interruptRead() { _ = p.control.SetReadDeadline(time.Unix(1, 0)) } // as above

// clearDeadline takes the deadline away, which is the connection's.
func (p *pacedReader) clearDeadline() { _ = p.control.SetReadDeadline(time.Time{}) }

// storeArchive writes an archive down, after others have made room for it.
func (u *uploadStore) storeArchive(n archiveName, from io.Reader, size int64) error {
	dir := u.ownerDir(n.owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
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
	if old := u.archives[n]; old != nil { // its file has been replaced
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
		return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
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

// reservedWriter writes what there is room for.
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

// makeRoom reserves room for an archive of an owner. What is old goes, and then the oldest
// of the owner's until there is room.
//
// Exhausted: there is none all the same.
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

// oldestOf returns the archive of an owner that nobody has used for longest. The lock is
// held.
func (u *uploadStore) oldestOf(owner string) (oldest archiveName, found bool) {
	for n, a := range u.archives {
		if n.owner == owner && a.users == 0 && (!found || a.used.Before(u.archives[oldest].used)) {
			oldest, found = n, true
		}
	}
	return oldest, found
}

// removeArchive forgets an archive. The lock is held.
func (u *uploadStore) removeArchive(n archiveName) {
	if err := os.Remove(u.archivePath(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // it takes room, and counts
	}
	u.archives[n].space.Release()
	delete(u.archives, n)
}
