package image

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Single returns an EROFS file that holds one program of root's, which anybody
// may run, under the given name. It is made once per key and name; open is
// called only then, and what it returns is closed. The file stays for a minute at
// least.
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
