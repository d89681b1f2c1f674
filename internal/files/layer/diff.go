package layer

import (
	"archive/tar"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/sandpit-dev/sandpit"
)

// Limits bound what Compare returns. Zero means none.
type Limits struct {
	Changes int
	Patches int // bytes of all patches together
}

// Compare returns how the files of one layer differ from those of another. Both must be layers of the same image; nil
// means the image itself. A directory that only one layer has written is included only if nothing in it was written.
// Patches are made from the stored texts.
func Compare(from, to *Layer, limits Limits) sandpit.FileDiff {
	d := sandpit.FileDiff{Changes: []sandpit.FileChange{}}
	left := limits.Patches
	names, full := changedPaths(from, to)
	for _, name := range names {
		c, ok := compareFile(from, to, name)
		if !ok || full[name] && c.Type == "directory" && (c.Kind == sandpit.DiffWritten || c.Kind == sandpit.DiffRestored) {
			continue
		}
		if len(d.Changes) == limits.Changes {
			d.Truncated = true
			break
		}
		if left > 0 {
			c.Patch = makePatch(from, to, name)
			if left -= len(c.Patch); left <= 0 {
				c.Patch, d.Truncated = "", true
			}
		}
		d.Changes = append(d.Changes, c)
	}
	return d
}

// changedPaths returns all paths that any of the layers has, sorted, and the directories that contain them.
func changedPaths(layers ...*Layer) (names []string, full map[string]bool) {
	all := make(map[string]bool)
	full = make(map[string]bool)
	for _, l := range layers {
		if l != nil {
			for name := range l.files {
				all[name], full[parentOf(name)] = true, true
			}
		}
	}
	return slices.Sorted(maps.Keys(all)), full
}

func compareFile(from, to *Layer, name string) (sandpit.FileChange, bool) {
	old, hasOld := from.findFile(name)
	now, hasNow := to.findFile(name)
	c := sandpit.FileChange{Path: "/" + name}
	switch {
	case !hasOld && now.gone:
		c.Kind = sandpit.DiffRemoved
		return c, true
	case !hasOld:
		c.Kind = sandpit.DiffWritten
	case !hasNow:
		c.Kind = sandpit.DiffRestored
		c.Type, c.OldMode, c.OldSize = typeName(old), old.mode, old.size
		return c, true
	case old.gone && now.gone, isSameFile(old, now):
		return c, false
	case old.gone:
		c.Kind = sandpit.DiffAdded
	case now.gone:
		c.Kind = sandpit.DiffRemoved
		c.Type, c.Mode, c.Size = typeName(old), old.mode, old.size
		return c, true
	default:
		c.Kind, c.OldMode, c.OldSize = sandpit.DiffChanged, old.mode, old.size
	}
	c.Type, c.Mode, c.Size = typeName(now), now.mode, now.size
	return c, true
}

func isSameFile(a, b file) bool {
	return a.gone == b.gone && a.kind == b.kind && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid &&
		a.size == b.size && a.link == b.link && a.sum == b.sum
}

func typeName(f file) string {
	switch f.kind {
	case tar.TypeReg, tar.TypeLink:
		return "file"
	case tar.TypeDir:
		return "directory"
	case tar.TypeSymlink:
		return "link"
	default:
		return "other"
	}
}

// makePatch returns a patch from one text to the other, "" if not both are known texts, or if the name could be
// mistaken for a part of the patch.
func makePatch(from, to *Layer, name string) string {
	old, hasOld := from.findFile(name)
	now, hasNow := to.findFile(name)
	if !hasOld || !hasNow || old.text == nil && !old.gone || now.text == nil && !now.gone || old.sum == now.sum ||
		strings.ContainsFunc(name, unicode.IsControl) {
		return ""
	}
	a, b := "a/"+name, "b/"+name
	if old.gone {
		a = "/dev/null"
	}
	if now.gone {
		b = "/dev/null"
	}
	return string(diff.Diff(a, old.text, b, now.text))
}
