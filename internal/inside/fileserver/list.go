package fileserver

import (
	_ "embed"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// maxNames bounds the names in a list.
const maxNames = 1000

// noTime suppresses the Last-Modified header: see serveFile.
var noTime time.Time

//go:embed list.html
var listText string

var listPage = template.Must(template.New("list").Parse(listText))

// entry is a line of a list.
type entry struct{ Name, Link string }

// serveList shows the names in a directory.
func serveList(w http.ResponseWriter, r *http.Request, root *beneath.Root, name string) error {
	names, err := root.ReadNames(name, maxNames+1)
	if err != nil {
		return err
	}
	more := len(names) > maxNames
	names = slices.DeleteFunc(names[:min(len(names), maxNames)], isHidden)
	slices.Sort(names)
	entries := make([]entry, 0, len(names))
	for _, n := range names {
		if _, info, err := followLinks(root, path.Join(name, n)); err == nil && info.IsDir() {
			n += "/"
		} else if err != nil || !info.Mode().IsRegular() {
			continue // serveName would refuse it
		}
		entries = append(entries, entry{n, "./" + (&url.URL{Path: n}).EscapedPath()})
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	if r.Method == http.MethodHead {
		return nil
	}
	_ = listPage.Execute(w, struct { // fails only if the browser has disconnected
		Title   string
		Entries []entry
		Up      bool
		More    bool
	}{strings.ToValidUTF8(r.URL.Path, "\uFFFD"), entries, r.URL.Path != "/", more})
	return nil
}
