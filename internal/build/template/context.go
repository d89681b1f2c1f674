package template

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
)

// WriteContext writes the files that a template copies from a directory as a tar stream, under
// their paths in the directory, except ignored ones.
//
// NotFound: a file does not exist. Invalid: a path is outside of the directory.
func WriteContext(ctx context.Context, t Template, dir string, to io.Writer) (err error) {
	from, err := openSource(dir)
	if err != nil {
		return err
	}
	defer func() { _ = from.root.Close() }() // only read
	p := &layerWriter{ctx: ctx, source: from, sum: io.Discard, tar: tar.NewWriter(to)}
	for i, s := range t.Steps {
		if s.Copy == nil {
			continue
		}
		names, err := from.expandPatterns(s.Copy.From)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Where(i), err)
		}
		for _, name := range names {
			if err := p.addPath(name, cleanPath(name), false); err != nil {
				return fmt.Errorf("%s: %w", s.Where(i), err)
			}
		}
	}
	return p.tar.Close()
}

// Copies reports whether a template copies files.
func Copies(t Template) bool {
	for _, s := range t.Steps {
		if s.Copy != nil {
			return true
		}
	}
	return false
}
