package layer

import (
	"archive/tar"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"
)

// Kind says what became of a file.
type Kind string

// The kinds.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
	// Written is one that one of both has written, and the other has as their image: it
	// was added or changed, or is there no more, and the image would have to be looked at.
	Written Kind = "written"
	// Restored is one that the first has written, and the second has as their image.
	Restored Kind = "restored"
)

// Change is one file that differs. What is zero is not known, or does not apply.
type Change struct {
	Path string `json:"path" doc:"Absolute."`
	Kind Kind   `json:"kind" enum:"added,changed,removed,written,restored" doc:"written: it was added or changed, compared with an image that was not looked at. restored: it is as in the image again."`
	Type string `json:"type,omitempty" doc:"file, directory, link or other."`
	// Mode and Size are those of the second, or of the first if it was removed.
	Mode    uint32 `json:"mode,omitempty" doc:"Permission bits."`
	Size    int64  `json:"size" doc:"Bytes."`
	OldMode uint32 `json:"old_mode,omitempty"`
	OldSize int64  `json:"old_size,omitempty"`
	// Patch is how one text becomes the other, as a unified diff.
	Patch string `json:"patch,omitempty" doc:"How one text becomes the other, as a unified diff."`
}

// Diff is what differs between two.
type Diff struct {
	Changes []Change `json:"changes" nullable:"false" doc:"In the order of their paths."`
	// Truncated says that there are more than were told.
	Truncated bool `json:"truncated,omitempty" doc:"There are more changes, or patches, than are told."`
}

// Limits bound what Compare returns. Zero is none.
type Limits struct {
	Changes int
	Patches int // bytes of all patches together
}

// Compare tells how the files of one become those of another, both being layers of the
// same image; nil is the image itself. A directory that one has written, and the other has
// as their image, is told only if nothing in it was. Patches are made of the texts that
// were kept.
func Compare(from, to *Layer, most Limits) Diff {
	d := Diff{Changes: []Change{}}
	left := most.Patches
	names, full := paths(from, to)
	for _, name := range names {
		c, ok := compare(from, to, name)
		if !ok || full[name] && c.Type == "directory" && (c.Kind == Written || c.Kind == Restored) {
			continue
		}
		if len(d.Changes) == most.Changes {
			d.Truncated = true
			break
		}
		if left > 0 {
			c.Patch = patch(from, to, name)
			if left -= len(c.Patch); left <= 0 {
				c.Patch, d.Truncated = "", true
			}
		}
		d.Changes = append(d.Changes, c)
	}
	return d
}

// paths returns all that either says something of, in order, and the directories of
// those.
func paths(layers ...*Layer) (names []string, full map[string]bool) {
	all := make(map[string]bool)
	full = make(map[string]bool)
	for _, l := range layers {
		if l != nil {
			for name := range l.files {
				all[name], full[parent(name)] = true, true
			}
		}
	}
	return slices.Sorted(maps.Keys(all)), full
}

func compare(from, to *Layer, name string) (Change, bool) {
	old, hasOld := from.find(name)
	now, hasNow := to.find(name)
	c := Change{Path: "/" + name}
	switch {
	case !hasOld && now.gone:
		c.Kind = Removed
		return c, true
	case !hasOld:
		c.Kind = Written
	case !hasNow:
		c.Kind = Restored
		c.Type, c.OldMode, c.OldSize = kind(old), old.mode, old.size
		return c, true
	case old.gone && now.gone, same(old, now):
		return c, false
	case old.gone:
		c.Kind = Added
	case now.gone:
		c.Kind = Removed
		c.Type, c.Mode, c.Size = kind(old), old.mode, old.size
		return c, true
	default:
		c.Kind, c.OldMode, c.OldSize = Changed, old.mode, old.size
	}
	c.Type, c.Mode, c.Size = kind(now), now.mode, now.size
	return c, true
}

func same(a, b file) bool {
	return a.gone == b.gone && a.kind == b.kind && a.mode == b.mode && a.uid == b.uid && a.gid == b.gid &&
		a.size == b.size && a.link == b.link && a.sum == b.sum
}

func kind(f file) string {
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

// patch returns how one text becomes the other, "" if they are not both known to be
// texts, or if a name would be taken for a part of the patch.
func patch(from, to *Layer, name string) string {
	old, hasOld := from.find(name)
	now, hasNow := to.find(name)
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
