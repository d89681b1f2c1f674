package uploads

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// The limits of archives that are uploaded in parts.
const (
	maxSets  = 16 // of an owner
	maxParts = 10000
)

// PartSet is an archive that a client uploads in parts.
type PartSet struct {
	id    string
	name  Name
	began time.Time
	parts map[int]*part // by number
}

// part is a part that was received.
type part struct {
	path  string
	etag  string
	size  int64
	space *diskspace.Reservation
}

func errNoSet(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "upload %.40q not found", id)
}

// BeginParts begins an archive that is uploaded in parts, and returns its ID. Parts that are not
// completed within UploadTime are removed.
//
// Exhausted: the owner has begun too many.
func (u *Store) BeginParts(n Name) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLateParts()
	own := 0
	for _, set := range u.sets {
		if set.name.Owner == n.Owner {
			own++
		}
	}
	if own >= maxSets {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "owner %.100q has begun %d uploads", n.Owner, own), "complete or abort them")
	}
	id := rand.Text()
	u.sets[id] = &PartSet{id: id, name: n, began: time.Now(), parts: make(map[int]*part)}
	return id, nil
}

// removeLateParts removes what was not completed in time. The lock is held.
func (u *Store) removeLateParts() {
	for _, set := range u.sets {
		if time.Since(set.began) > UploadTime {
			u.removeSet(set)
		}
	}
}

// removeSet removes an upload with its parts. The lock is held.
func (u *Store) removeSet(set *PartSet) {
	delete(u.sets, set.id)
	for _, p := range set.parts {
		removePart(p)
	}
}

// removePart removes a part. If its file remains, it counts until the server ends.
func removePart(p *part) {
	if err := os.Remove(p.path); err == nil || errors.Is(err, os.ErrNotExist) {
		p.space.Release()
	}
}

// findSet returns an upload of an archive. The lock is held.
func (u *Store) findSet(n Name, id string) (*PartSet, error) {
	set := u.sets[id]
	if set == nil || set.name != n {
		return nil, errNoSet(id)
	}
	return set, nil
}

// ReceivePart stores a part, which replaces an earlier one of that number.
//
// NotFound: the upload. Invalid: the number or size. Exhausted: there is not enough room.
func (u *Store) ReceivePart(ctx context.Context, n Name, id string, number int, up Upload) error {
	if number < 1 || number > maxParts {
		return sandpit.Errorf(sandpit.Invalid, "part %d: want 1 to %d", number, maxParts)
	}
	if err := checkSize(up.Size); err != nil {
		return err
	}
	u.mu.Lock()
	_, err := u.findSet(n, id)
	u.mu.Unlock()
	if err != nil {
		return err
	}
	waiting, cancel := withUploadWait(ctx)
	defer cancel()
	slot, err := u.slots.Acquire(waiting, n.Owner, 1)
	if err != nil {
		return err
	}
	defer slot.Release()
	p, err := u.writePart(ctx, n, up)
	if err != nil {
		return err
	}
	p.etag = up.ETag()
	return u.addPart(n, id, number, p)
}

// writePart writes a part to a file.
func (u *Store) writePart(ctx context.Context, n Name, up Upload) (p *part, err error) {
	dir := u.ownerDir(n.Owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	space, err := u.makeRoom(n.Owner, up.Size)
	if err != nil {
		return nil, err
	}
	p = &part{path: filepath.Join(dir, "piece-"+rand.Text()), size: up.Size, space: space}
	f, err := os.OpenFile(p.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		space.Release()
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	err = up.read(ctx, func(body io.Reader) error {
		written, err := io.Copy(reservedWriter{f, space}, body)
		if err == nil && written != up.Size {
			err = sandpit.Errorf(sandpit.Invalid, "received %d of %d bytes", written, up.Size)
		}
		return err
	})
	if err = errors.Join(err, f.Close()); err != nil {
		removePart(p)
		return nil, err
	}
	space.Settle(up.Size)
	return p, nil
}

// addPart adds a part to an upload, which may have ended meanwhile.
func (u *Store) addPart(n Name, id string, number int, p *part) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	set, err := u.findSet(n, id)
	if err == nil && set.size()-set.parts[number].bytes()+p.size > MaxBytes {
		err = sandpit.Errorf(sandpit.Invalid, "more than %d bytes", int64(MaxBytes))
	}
	if err != nil {
		removePart(p)
		return err
	}
	if old := set.parts[number]; old != nil {
		removePart(old)
	}
	set.parts[number] = p
	return nil
}

// bytes returns the size of a part; nil has none.
func (p *part) bytes() int64 {
	if p == nil {
		return 0
	}
	return p.size
}

// size returns the size of all parts.
func (s *PartSet) size() (size int64) {
	for _, p := range s.parts {
		size += p.size
	}
	return size
}

// Part names a part of an upload.
type Part struct {
	Number int
	ETag   string
}

// CompleteParts makes an archive of parts, in the order of their numbers.
//
// NotFound: the upload. Invalid: the parts. Exhausted: there is not enough room.
func (u *Store) CompleteParts(ctx context.Context, n Name, id string, parts []Part) error {
	waiting, cancel := withUploadWait(ctx)
	defer cancel()
	done, err := u.waitForTurn(waiting, n)
	if err != nil {
		return err
	}
	defer done()
	set, chosen, err := u.takeParts(n, id, parts)
	if err != nil {
		return err
	}
	defer func() {
		for _, p := range set.parts {
			removePart(p)
		}
	}()
	var size int64
	readers := make([]io.Reader, 0, len(chosen))
	for _, p := range chosen {
		f, err := os.Open(p.path)
		if err != nil {
			return sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		readers, size = append(readers, f), size+p.size
	}
	return u.storeArchive(n, contextReader{ctx, io.MultiReader(readers...)}, size)
}

// takeParts takes an upload out of the store, and returns the parts that the client names.
func (u *Store) takeParts(n Name, id string, parts []Part) (*PartSet, []*part, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	set, err := u.findSet(n, id)
	if err != nil {
		return nil, nil, err
	}
	if len(parts) == 0 || !slices.IsSortedFunc(parts, func(a, b Part) int { return a.Number - b.Number }) {
		return nil, nil, sandpit.Errorf(sandpit.Invalid, "want the parts of the upload in the order of their numbers")
	}
	chosen := make([]*part, 0, len(parts))
	for i, named := range parts {
		p := set.parts[named.Number]
		if p == nil || p.etag != named.ETag || i > 0 && parts[i-1].Number == named.Number {
			return nil, nil, sandpit.Errorf(sandpit.Invalid, "part %d of the upload is missing or another one", named.Number)
		}
		chosen = append(chosen, p)
	}
	delete(u.sets, id)
	return set, chosen, nil
}

// AbortParts removes an upload with its parts. NotFound.
func (u *Store) AbortParts(n Name, id string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	set, err := u.findSet(n, id)
	if err == nil {
		u.removeSet(set)
	}
	return err
}
