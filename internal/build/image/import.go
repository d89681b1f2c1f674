package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Import converts a directory or archive as Resolve does, and sets the image's name, or
// the names in the archive if name is "". It returns an entry for each name.
//
// Invalid: the name is missing or invalid. Otherwise as Resolve.
func (s *Store) Import(ctx context.Context, path, name string, p Progress) ([]Entry, error) {
	if !IsPath(path) {
		path = "./" + path
	}
	return s.importWith(ctx, path, name, func() (*os.File, indexEntry, error) { return s.openPath(ctx, path, p) })
}

// ImportFrom imports an archive that it reads from r, as Import does.
func (s *Store) ImportFrom(ctx context.Context, r io.Reader, name string, p Progress) ([]Entry, error) {
	const source = "-"
	return s.importWith(ctx, source, name, func() (*os.File, indexEntry, error) {
		var e indexEntry
		f, key, err := s.builder.makeOnce(ctx, makeJob{
			lock: "stream-" + rand.Text(),
			find: func() (string, error) {
				if e.Key == "" {
					return "", nil
				}
				return s.cache.existingKey(e.Key)
			},
			write: func(out *os.File) (makeResult, error) {
				var m makeResult
				var err error
				m, e, err = s.convertTar(&countingReader{ctx: ctx, r: r, progress: p}, out, archiveOrigin{path: source})
				return m, err
			},
		})
		e.Key = key
		return f, e, err
	})
}

func (s *Store) importWith(
	ctx context.Context, path, name string, convert func() (*os.File, indexEntry, error),
) (list []Entry, err error) {
	var given []reference
	if name != "" {
		if given, err = importNames([]string{name}); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
	}
	f, e, err := convert()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if name == "" {
		if given, err = importNames(slices.DeleteFunc(e.Names, isBareTag)); err != nil || len(given) == 0 {
			return nil, fmt.Errorf("import %s: %w", path, errNameless(err))
		}
	}
	key := strings.TrimSuffix(f.Name()[len(s.cache.dir)+1:], imageSuffix)
	for _, r := range given {
		if err := s.names.set(ctx, r, nameRecord{Name: r.String(), Key: key}); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		entry, err := newEntry(f, key)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		entry.Name = r.shortName()
		list = append(list, entry)
	}
	return list, nil
}

// isBareTag reports whether a name in an archive is only a tag.
func isBareTag(name string) bool { return !strings.Contains(name, ":") }

func errNameless(err error) error {
	if err == nil {
		err = sandpit.Errorf(sandpit.Invalid, "the archive contains no name for the image")
	}
	return sandpit.WithHint(err, "add --name NAME")
}

// importNames parses names and removes duplicates.
func importNames(names []string) ([]reference, error) {
	var list []reference
	for _, name := range names {
		r, err := parseReference(name)
		if err != nil {
			return nil, err
		}
		if name == string(sandpit.HostImage) || IsPath(name) {
			return nil, errReference("%s is not a name that an image can have", quoteName(name))
		}
		if r.digest != "" {
			return nil, errReference("%s has a digest, which cannot be chosen", quoteName(name))
		}
		if r.template != "" {
			return nil, errReference("%s is the name of a template", quoteName(name))
		}
		if !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list, nil
}
