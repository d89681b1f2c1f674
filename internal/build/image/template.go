package image

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// SetTemplate gives an image the name of a template, "template:" and the name, which
// holds it in the cache until it is removed by that name or another image gets it.
//
// Invalid: that is no such name. NotFound: no image has this ID.
func (s *Store) SetTemplate(ctx context.Context, name sandpit.Image, id string) (Entry, error) {
	r, ok, err := parseTemplate(string(name))
	if err == nil && !ok {
		err = errTemplateName(string(name))
	}
	if err != nil {
		return Entry{}, err
	}
	f, err := s.cache.openID(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("template %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // only read
	if err := s.names.set(ctx, r, nameRecord{Name: r.String(), Key: id}); err != nil {
		return Entry{}, fmt.Errorf("template %s: %w", name, err)
	}
	e, err := newEntry(f, id)
	e.Name = r.shortName()
	return e, err
}

// Template returns what Extension.Template was for an image of the cache.
func (s *Store) Template(ctx context.Context, ref sandpit.Image) (json.RawMessage, error) {
	root, err := s.Resolve(ctx, ref, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.File.Close() }() // only read
	n, err := readNote(root.File)
	return n.Template, err
}

// CheckTemplate returns an Invalid error unless SetTemplate takes the name.
func CheckTemplate(name sandpit.Image) error {
	_, ok, err := parseTemplate(string(name))
	if err == nil && !ok {
		err = errTemplateName(string(name))
	}
	return err
}

// templateHint says how there can be a template of a name.
func (s *Store) templateHint(name string) string {
	if slices.Contains(s.o.Builtins, name) {
		return "build it: sandpit template build builtin:" + name
	}
	return "sandpit template ls; or build it: sandpit template build -t " + name
}

// isTemplate reports whether one of the names of an image is that of a template.
func isTemplate(names []nameRecord) bool {
	return slices.ContainsFunc(names, func(p nameRecord) bool { return strings.HasPrefix(p.Name, templatePrefix) })
}
