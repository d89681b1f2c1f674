// Package fileserver shows the files of a directory to browsers. It replaces the web server of a language's library
// without needing that language. It only reads, and only below the directory.
//
// It runs inside a sandbox as a process of its user, whose rights bound what it can read.
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

// index is the page for a directory.
const index = "index.html"

// maxLinks is how many symbolic links a name may lead through, as in Linux.
const maxLinks = 40

var (
	errHidden  = errors.New("hidden")
	errSpecial = errors.New("not a file")
)

// Handler shows the files below a directory, which must stay open while it serves.
//
// For a directory it shows index.html, or else a list of at most 1000 names. Names that begin with a dot are not
// found, except .well-known, because programs keep secrets and histories there. Links are followed within the
// directory. Other kinds of files are not found. Browsers ask each time whether a file has changed.
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

// statusOf returns the HTTP status for an error. A name that leads out of the directory is not found.
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

// nameOf returns the file name for a URL path.
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

// followLinks returns the name and description of a file with symbolic links followed.
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
		// Not cleaned: Root resolves "..".
		name = path.Dir(name) + "/" + target
	}
	return "", nil, unix.ELOOP
}

// redirectToDir redirects a browser to the directory's name with a slash, so that relative links work.
func redirectToDir(w http.ResponseWriter, r *http.Request) {
	to := path.Base(r.URL.EscapedPath()) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", "./"+to) // relative, because a proxy may use another path
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// serveFile sends a file. Its name has no links; if one takes the file's place meanwhile, the request is refused.
func serveFile(w http.ResponseWriter, r *http.Request, root *beneath.Root, name string) error {
	// Opening a special file may block or have effects.
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
	// With a time in whole seconds a browser would miss a second change within a second.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		w.Header().Set("Etag", fmt.Sprintf(`"%x-%x-%x"`, stat.Ino, info.Size(), info.ModTime().UnixNano()))
	}
	http.ServeContent(w, r, path.Base(name), noTime, f)
	return nil
}
