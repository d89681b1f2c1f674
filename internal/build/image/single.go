package image

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Single returns the path of an EROFS file that contains one program, owned by root and
// executable by all users, under the given name. It is built once per key and name: only
// then Single calls open, and closes what it returns. The file is kept for at least a minute.
//
// Invalid: name is not a file name. Exhausted: the disk is full.
func (s *Store) Single(ctx context.Context, key, name string, open func() (io.ReadCloser, error)) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	image := cacheKey("single", key, name)
	f, _, err := s.builder.makeOnce(ctx, makeJob{
		lock: image,
		find: s.cache.findKey(image),
		write: func(f *os.File) (makeResult, error) {
			if err := writeSingle(ctx, f, name, open); err != nil {
				return makeResult{}, err
			}
			return makeResult{key: image}, writeNote(f, note{Kind: KindProgram, Source: name})
		},
	})
	if err != nil {
		return "", fmt.Errorf("image of %s: %w", name, err)
	}
	return f.Name(), f.Close()
}

func writeSingle(ctx context.Context, f *os.File, name string, open func() (io.ReadCloser, error)) error {
	program, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // only read
	w := newWriter(f)
	n := &node{mode: unix.S_IFREG | 0o755}
	if n.block, n.size, err = w.writeData(&countingReader{ctx: ctx, r: program}); err != nil {
		return err
	}
	root := newDir(0o755)
	root.children[name] = n
	return w.finishImage(root)
}
