package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// layer records the changes of one layer of an image so far.
type layer struct {
	// fresh are the names that this layer has added. Marks do not hide them: a mark
	// applies to lower layers only, wherever in the layer it is.
	fresh map[dirName]struct{}
	// emptied are directories that contain nothing from lower layers.
	emptied map[*node]struct{}
}

// dirName is a name in a directory.
type dirName struct {
	dir  *node
	name string
}

func newLayer() *layer {
	return &layer{fresh: map[dirName]struct{}{}, emptied: map[*node]struct{}{}}
}

// addName records that this layer has added n to a directory.
func (l *layer) addName(dir *node, name string, n *node, isNew bool) {
	l.fresh[dirName{dir, name}] = struct{}{}
	if isNew && n.isDir() {
		l.emptied[n] = struct{}{}
	}
}

// hideName removes a name that lower layers have added.
func (l *layer) hideName(dir *node, name string) {
	child := dir.children[name]
	if child == nil {
		return
	}
	_, fresh := l.fresh[dirName{dir, name}]
	if child.isDir() {
		l.stripDir(child)
		fresh = fresh || len(child.children) > 0
	}
	if !fresh {
		delete(dir.children, name)
	}
}

// stripDir removes what lower layers have added to a directory. Later calls for the same
// directory do nothing, because then everything in it is from this layer.
func (l *layer) stripDir(dir *node) {
	if _, done := l.emptied[dir]; done {
		return
	}
	l.emptied[dir] = struct{}{}
	for name := range dir.children {
		l.hideName(dir, name)
	}
}

// The marks of a layer: a name that begins with markPrefix hides the rest of the
// name, and opaqueMark everything in its directory. Other names that begin with
// markMeta belong to the file system that the layer was made with.
const (
	markPrefix = ".wh."
	markMeta   = ".wh..wh."
	opaqueMark = ".wh..wh..opq"
)

// isMark reports whether a path contains a mark.
func isMark(parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, markPrefix) })
}

// applyMark applies a mark to the tree.
func (a *archive) applyMark(name string, parts []string) error {
	if err := a.left.countFile(name, &node{}, 0); err != nil {
		return err
	}
	last := len(parts) - 1
	switch hidden, isHiding := strings.CutPrefix(parts[last], markPrefix); {
	case parts[last] == opaqueMark && !isMark(parts[:last]):
		if dir, err := a.walkTo(parts[:last], false); err == nil { // otherwise there is nothing to hide
			a.layer.stripDir(dir)
		}
		return a.checkSteps()
	case slices.ContainsFunc(parts, func(p string) bool { return strings.HasPrefix(p, markMeta) }):
		return nil // left out
	case !isHiding || isMark(parts[:last]):
		return sandpit.Errorf(sandpit.Invalid, "entry %s: its directory has a name that layers reserve for marks", quoteName(name))
	case checkName(hidden) != nil:
		return sandpit.Errorf(sandpit.Invalid, "entry %s hides an invalid file name", quoteName(name))
	default:
		if dir, err := a.walkTo(parts[:last], false); err == nil {
			a.layer.hideName(dir, hidden)
		}
		return a.checkSteps()
	}
}

// checkSteps returns an error if a walk whose own error was ignored has used up a limit.
func (a *archive) checkSteps() error {
	if a.left.steps < 0 {
		return sandpit.Errorf(sandpit.Exhausted, "the names pass through too many links and directories")
	}
	return nil
}

// leaveOut hides the file of lower layers that an entry of an unsupported type replaces.
func (a *archive) leaveOut(parts []string) error {
	last := len(parts) - 1
	if a.layer == nil || last < 0 {
		return nil
	}
	if dir, err := a.walkTo(parts[:last], false); err == nil {
		a.layer.hideName(dir, parts[last])
	}
	return a.checkSteps()
}

// layerList opens the layers of an image, the lowest first.
type layerList interface {
	countLayers() int
	// openLayer returns one layer, packed as it is.
	openLayer(ctx context.Context, i int) (io.ReadCloser, error)
	// digestAt returns the expected digest of a layer's bytes.
	digestAt(i int) string
}

// mergeLayers writes one image of all layers. Contents are copied directly from the layer to
// the file; contents that a later layer hides become a hole.
func mergeLayers(ctx context.Context, out *os.File, from layerList, lim limits, space reservation) error {
	a := newArchive(out, lim)
	a.w.space = space
	for i := range from.countLayers() {
		a.layer = newLayer()
		if err := a.addLayer(ctx, from, i); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	a.layer = nil
	if err := a.w.punchHoles(a.root); err != nil {
		return err
	}
	return a.w.finishImage(a.root)
}

func (a *archive) addLayer(ctx context.Context, from layerList, i int) error {
	r, err := from.openLayer(ctx, i)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	h := sha256.New()
	raw := bufio.NewReaderSize(io.TeeReader(&countingReader{ctx: ctx, r: r}, h), 256<<10)
	err = a.readAll(raw)
	if sandpit.CodeOf(err) == sandpit.Exhausted || ctx.Err() != nil {
		return err
	}
	// A wrong digest explains more than the error that the wrong bytes cause.
	a.in = raw
	if err := discardRest(a); err != nil {
		return archiveError(err)
	}
	if got := "sha256:" + sumOf(h); got != from.digestAt(i) {
		return errWrongDigest(from.digestAt(i), got)
	}
	if err != nil {
		return archiveError(err)
	}
	return nil
}

func errWrongDigest(want, got string) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "wrong digest: want %s, got %s", want, got),
		"fetch it again; if that does not help, the registry or the archive is damaged")
}

// punchHoles frees the space of contents that no name refers to.
func (w *writer) punchHoles(root *node) error {
	if err := w.flushBuffer(); err != nil {
		return err
	}
	type extent struct{ from, to int64 }
	var live []extent
	root.eachFile(func(n *node) {
		from := int64(n.block) << blockBits
		live = append(live, extent{from, from + (n.size+blockSize-1)&^(blockSize-1)})
	})
	slices.SortFunc(live, func(a, b extent) int {
		if a.from != b.from {
			return int(min(max(a.from-b.from, -1), 1))
		}
		return int(min(max(a.to-b.to, -1), 1))
	})
	live = append(live, extent{w.at, w.at})
	end := int64(blockSize)
	for _, e := range live {
		if e.from > end {
			// Without support for holes the image only uses more space.
			_ = unix.Fallocate(int(w.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, e.from-end)
		}
		end = max(end, e.to)
	}
	return nil
}
