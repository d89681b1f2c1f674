// Package fileserver shows the files of a directory to browsers: what a web server of a
// language's library is started for, without that language. It reads and never writes, and
// only what is below the directory.
//
// It runs inside a sandbox, as a process of its user, whose rights bound what it can read.
package fileserver

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// index is the page that stands for its directory.
const index = "index.html"

// maxLinks is how many links one after the other a name may lead through, as in Linux.
const maxLinks = 40

var (
	errHidden  = errors.New("hidden")
	errSpecial = errors.New("not a file")
)

// Handler shows the files below a directory, which must stay open as long as it serves.
//
// A directory is its index.html, or else a list of at most 1000 names. Names that begin
// with a dot are not there, but for .well-known: they are where programs keep secrets and
// histories. A link leads where it leads, as long as that is inside; what is neither file
// nor directory is not there. Browsers ask again each time whether a file has changed.
func Handler(root *beneath.Root) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			writeStatus(w, http.StatusMethodNotAllowed)
			return
		}
		if err := serveName(w, r, root); err != nil {
			writeStatus(w, statusOf(err))
		}
	})
}

func writeStatus(w http.ResponseWriter, status int) {
	http.Error(w, http.StatusText(status), status)
}

// statusOf is what a browser is told. What leads outside is not there.
func statusOf(err error) int {
	switch {
	case errors.Is(err, beneath.ErrEscapes):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EIO):
		return http.StatusServiceUnavailable
	default:
		return http.StatusNotFound // no such file, name or kind of file
	}
}

func serveName(w http.ResponseWriter, r *http.Request, root *beneath.Root) error {
	name, err := nameOf(r.URL.Path)
	if err != nil {
		return err
	}
	name, info, err := followLinks(root, name)
	if err != nil {
		return err
	}
	slash := strings.HasSuffix(r.URL.Path, "/")
	switch {
	case info.IsDir() && !slash:
		redirectToDir(w, r)
		return nil
	case info.IsDir():
		page, pageInfo, err := followLinks(root, path.Join(name, index))
		if err == nil && pageInfo.Mode().IsRegular() {
			return serveFile(w, r, root, page)
		}
		return serveList(w, r, root, name)
	case slash:
		return fs.ErrNotExist
	default:
		return serveFile(w, r, root, name)
	}
}

// nameOf is the name of what a path asks for.
func nameOf(asked string) (string, error) {
	name := strings.TrimPrefix(path.Clean("/"+asked), "/")
	for element := range strings.SplitSeq(name, "/") {
		if isHidden(element) {
			return "", errHidden
		}
	}
	return cmp.Or(name, "."), nil
}

func isHidden(name string) bool { return strings.HasPrefix(name, ".") && name != ".well-known" }

// followLinks finds what a name stands for, links followed, and what that is.
func followLinks(root *beneath.Root, name string) (string, fs.FileInfo, error) {
	for range maxLinks {
		info, err := root.Lstat(name)
		if err != nil {
			return "", nil, err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return name, info, nil
		}
		target, err := root.Readlink(name)
		if err != nil {
			return "", nil, err
		}
		if path.IsAbs(target) {
			return "", nil, beneath.ErrEscapes
		}
		// Not cleaned: what .. leads to, Root finds out.
		name = path.Dir(name) + "/" + target
	}
	return "", nil, unix.ELOOP
}

// redirectToDir sends a browser to the directory's own name, by which its links are right.
func redirectToDir(w http.ResponseWriter, r *http.Request) {
	to := path.Base(r.URL.EscapedPath()) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", "./"+to) // relative, as the viewer may have another path
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// serveFile shows a file. Its name leads through no link any more, unless somebody exchanges it
// just now; then it is refused.
func serveFile(w http.ResponseWriter, r *http.Request, root *beneath.Root, name string) error {
	// To open what is no file may wait for ever, or do something.
	if info, err := root.Lstat(name); err != nil || !info.Mode().IsRegular() {
		return cmp.Or(err, errSpecial)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return cmp.Or(err, errSpecial)
	}
	// A time in whole seconds would have a browser keep what changed within one.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		w.Header().Set("Etag", fmt.Sprintf(`"%x-%x-%x"`, stat.Ino, info.Size(), info.ModTime().UnixNano()))
	}
	http.ServeContent(w, r, path.Base(name), noTime, f)
	return nil
}
