package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// WriteArchive fetches files, calls write with them, and returns what it has written, as a file
// without a name. The caller closes it.
func (c *Client) WriteArchive(
	ctx context.Context, list []Wanted, write func(out io.Writer, files []*os.File) error,
) (io.ReadCloser, error) {
	files, err := c.Files(ctx, list)
	defer func() {
		for _, f := range files {
			if f != nil {
				_ = f.Close() // only read
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	out, err := os.CreateTemp(c.o.Dir, "*"+Unfinished)
	if err == nil {
		err = os.Remove(out.Name())
	}
	if err != nil {
		return nil, err
	}
	if err := write(out, files); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, err
}

// Wanted is one file of several to fetch.
type Wanted struct {
	Name string // for people
	Path string
	Pin
}

// Files returns files in the order of the list. The caller closes them, also those that are
// returned with an error.
func (c *Client) Files(ctx context.Context, list []Wanted) ([]*os.File, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	files := make([]*os.File, len(list))
	next := make(chan int)
	var workers sync.WaitGroup
	for range fetchers {
		workers.Go(func() {
			for i := range next {
				f, err := c.File(ctx, list[i].Path, list[i].Pin)
				if err != nil {
					cancel(fmt.Errorf("fetch the package %s: %w", list[i].Name, err))
					continue
				}
				files[i] = f
			}
		})
	}
	for i := range list {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	workers.Wait()
	return files, context.Cause(ctx)
}
