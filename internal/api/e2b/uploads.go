package e2b

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
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
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// PathUpload takes the files of a build. What it is asked for is in its query, signed: no
// key is needed.
const PathUpload = "/templates/files"

// The bounds of what clients upload for builds. Of an owner's uploads the oldest goes
// first, and so does what nobody has used for a day.
const (
	maxUpload   = 1 << 30 // bytes of one, packed
	maxUploads  = 4 << 30 // of all of an owner's
	maxUnpacked = 4 << 30 // of one, unpacked
	maxEntries  = 200_000 // of one
	uploadTime  = time.Hour
	uploadAge   = 24 * time.Hour
)

var filesHashPattern = regexp.MustCompile(`^[0-9a-f]{32,128}$`)

// uploads are files that clients have sent for builds, in a directory of their own: an
// archive for each owner and hash.
type uploads struct {
	dir   string
	key   []byte // signs links, which end with the server
	first sync.Once
}

func newUploads(dir string) *uploads {
	u := &uploads{dir: dir, key: make([]byte, 32)}
	_, _ = rand.Read(u.key) // never fails: crypto/rand ends the program instead
	return u
}

// place is where an owner's archives are.
func (u *uploads) place(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return filepath.Join(u.dir, hex.EncodeToString(sum[:16]))
}

func (u *uploads) file(owner, hash string) string { return filepath.Join(u.place(owner), hash+".tar") }

// has reports whether an archive is there, which then stays for a while.
func (u *uploads) has(owner, hash string) bool {
	now := time.Now()
	return os.Chtimes(u.file(owner, hash), now, now) == nil
}

// sign returns what a link has for its query.
func (u *uploads) sign(owner, hash string, until time.Time) string {
	end := strconv.FormatInt(until.Unix(), 10)
	return "owner=" + base64.RawURLEncoding.EncodeToString([]byte(owner)) + "&hash=" + hash + "&until=" + end + "&signature=" + u.signature(owner, hash, end)
}

func (u *uploads) signature(owner, hash, end string) string {
	mac := hmac.New(sha256.New, u.key)
	_, _ = mac.Write([]byte(owner + "\n" + hash + "\n" + end)) // never fails
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// check returns whose archive a link is for. Unauthenticated.
func (u *uploads) check(r *http.Request, now time.Time) (owner, hash string, err error) {
	query := r.URL.Query()
	raw, err := base64.RawURLEncoding.DecodeString(query.Get("owner"))
	owner, hash, end := string(raw), query.Get("hash"), query.Get("until")
	if err != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(u.signature(owner, hash, end))) {
		return "", "", sandpit.Errorf(sandpit.Unauthenticated, "invalid signature")
	}
	if seconds, err := strconv.ParseInt(end, 10, 64); err != nil || now.Unix() > seconds {
		return "", "", sandpit.Errorf(sandpit.Unauthenticated, "signature is already expired")
	}
	return owner, hash, nil
}

// upload takes an archive, which must come as a whole and be as long as was said.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) error {
	owner, hash, err := s.uploads.check(r, time.Now())
	switch {
	case err != nil:
		return err
	case r.ContentLength < 0:
		return sandpit.Errorf(sandpit.Invalid, "Content-Length is missing")
	case r.ContentLength > maxUpload:
		return sandpit.Errorf(sandpit.Invalid, "%d bytes, want at most %d", r.ContentLength, maxUpload)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(uploadTime)) // what cannot have one needs none
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	return s.uploads.keep(owner, hash, http.MaxBytesReader(w, r.Body, r.ContentLength), r.ContentLength)
}

// keep writes an archive down, after others have made room for it.
func (u *uploads) keep(owner, hash string, from io.Reader, size int64) error {
	dir := u.place(owner)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
	}
	if err := u.tidy(dir, maxUploads-size); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "part-")
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
	}
	n, err := io.Copy(f, from)
	if err == nil && n != size {
		err = sandpit.Errorf(sandpit.Invalid, "%d bytes have come of %d", n, size)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), u.file(owner, hash))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// tidy removes what is old, and then the oldest until the rest has at most so many bytes.
func (u *uploads) tidy(dir string, most int64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
	}
	var files []fs.FileInfo
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // somebody else has removed it
		}
		files, total = append(files, info), total+info.Size()
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range files {
		if total <= most && time.Since(info.ModTime()) < uploadAge {
			break
		}
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return sandpit.Errorf(sandpit.CodeOf(err), "keep files: %w", err)
		}
		total -= info.Size()
	}
	return nil
}

// unpack writes what is in an archive below a directory, from which nothing leads out.
// NotFound: there is no such archive. Invalid: it is none, or too large.
func (u *uploads) unpack(ctx context.Context, owner, hash, dir string) error {
	f, err := os.Open(u.file(owner, hash))
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the files with the hash %.20s… are not here", hash), "upload them again: forceUpload")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	packed := bufio.NewReader(f)
	var plain io.Reader = packed
	if magic, _ := packed.Peek(2); string(magic) == "\x1f\x8b" {
		if plain, err = gzip.NewReader(packed); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "unpack files: %w", err)
		}
	}
	if err := unpackTar(ctx, root, tar.NewReader(plain)); err != nil {
		return sandpit.Errorf(cmp.Or(sandpit.CodeOf(context.Cause(ctx)), sandpit.Invalid), "unpack files: %w", err)
	}
	return nil
}

func unpackTar(ctx context.Context, root *os.Root, from *tar.Reader) error {
	left := int64(maxUnpacked)
	for range maxEntries {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if left -= h.Size; left < 0 || h.Size < 0 {
			return sandpit.Errorf(sandpit.Invalid, "more than %d bytes", int64(maxUnpacked))
		}
		if err := unpackEntry(root, h, from); err != nil {
			return err
		}
	}
	return sandpit.Errorf(sandpit.Invalid, "more than %d files", maxEntries)
}

func unpackEntry(root *os.Root, h *tar.Header, contents io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	mode := h.FileInfo().Mode().Perm() | 0o600 // for who copies them
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o100)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	case tar.TypeReg:
	default:
		return sandpit.Errorf(sandpit.Invalid, "%.100q is neither a file nor a directory", h.Name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, contents)
	return errors.Join(err, f.Close())
}
