package guest

import (
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

// ErrorTrailer follows the stream of a tree that could not be read completely, with the reason.
const ErrorTrailer = "Sandpit-Error"

const treeType = "application/x-tar"

// servePack sends a file or a directory with everything below it as a tar stream.
func (g *Guest) servePack(w http.ResponseWriter, r *http.Request) {
	p, err := g.fileTarget(r)
	if err != nil {
		answerError(w, err)
		return
	}
	defer p.closeRoot()
	dir, name, err := p.openTop()
	if err != nil {
		answerError(w, p.clientError(err))
		return
	}
	defer dir.Close()
	w.Header().Set("Content-Type", treeType)
	w.Header().Set("Trailer", ErrorTrailer)
	if err := tree.Pack(r.Context(), w, dir, name); err != nil {
		w.Header().Set(ErrorTrailer, err.Error())
	}
}

// openTop returns the directory to which the names in a tar stream of p are relative, and the name to pack: the
// directory itself and ".", or the parent of a file and the file's name.
func (p *target) openTop() (dir *beneath.Root, name string, err error) {
	info, err := p.root.Lstat(p.rel)
	if err != nil {
		return nil, "", err
	}
	if !info.IsDir() {
		return p.openParent()
	}
	dir, err = p.root.OpenRoot(p.rel)
	return dir, ".", err
}

// serveUnpack unpacks a tar stream into a directory, which it creates if it is missing.
func (g *Guest) serveUnpack(w http.ResponseWriter, r *http.Request) {
	p, err := g.fileTarget(r)
	if err != nil {
		answerError(w, err)
		return
	}
	defer p.closeRoot()
	report, err := p.unpackTree(r)
	if err != nil {
		answerError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"files": report.Files, "directories": report.Dirs, "links": report.Links, "bytes": report.Bytes,
		"skipped": report.Skipped, "skipped_more": report.SkippedMore,
	})
}

func (p *target) unpackTree(r *http.Request) (tree.Report, error) {
	_, err := p.root.Lstat(p.rel)
	existed := err == nil
	if err := makeDirs(p.root, p.rel, p.user); err != nil {
		return tree.Report{}, err
	}
	dir, err := p.root.OpenRoot(p.rel)
	if err != nil {
		return tree.Report{}, err
	}
	defer dir.Close()
	// Links may lead anywhere: this is a sandbox, and the guest follows none.
	return tree.Unpack(r.Context(), r.Body, dir, tree.Options{
		Owner: &tree.Owner{UID: p.user.uid, GID: p.user.gid}, OutsideLinks: true,
		KeepTop: existed, // otherwise unpacking into /tmp would close it to other users
	})
}
