package image

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// SetTemplate sets the name of a template, "template:" and a name, to an image. The image
// stays in the cache until it is removed by that name or the name is set to another image.
//
// Invalid: not the name of a template. NotFound: no image has this ID.
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

// Template returns the Extension.Template that an image of the cache was built with.
func (s *Store) Template(ctx context.Context, ref sandpit.Image) (json.RawMessage, error) {
	root, err := s.Resolve(ctx, ref, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.File.Close() }() // only read
	n, err := readNote(root.File)
	return n.Template, err
}

// CheckTemplate returns an Invalid error if SetTemplate does not accept the name.
func CheckTemplate(name sandpit.Image) error {
	_, ok, err := parseTemplate(string(name))
	if err == nil && !ok {
		err = errTemplateName(string(name))
	}
	return err
}

// templateHint returns a hint how to build a template.
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
