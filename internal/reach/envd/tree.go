package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/sandpit-dev/sandpit"
)

const (
	treeType = "application/x-tar"
	// errorTrailer is the trailer of a stream that ended early.
	errorTrailer = "Sandpit-Error"
)

// ReadTree implements sandpit.Files. The tar stream comes from the guest: the
// caller must not trust a name in it.
func (f *files) ReadTree(ctx context.Context, user, p string) (io.ReadCloser, error) {
	r, err := f.newDownload(ctx, wholeTree, user, p)
	if err != nil {
		return nil, err
	}
	res, err := doRequest(f.http, r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	return &tree{ReadCloser: responseBody(ctx, res), res: res, path: p}, nil
}

// tree is the stream of a tree. A trailer at its end reports an error.
type tree struct {
	io.ReadCloser

	res  *http.Response
	path string
}

func (t *tree) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		if text := t.res.Trailer.Get(errorTrailer); text != "" {
			return n, sandpit.Errorf(sandpit.Internal, "read %s: %s", t.path, plainText(text))
		}
	}
	return n, err
}

// WriteTree implements sandpit.Files.
func (f *files) WriteTree(ctx context.Context, user, p string, tar io.Reader) error {
	r, err := f.newUpload(ctx, wholeTree, user, p)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", treeType)
	if _, err := f.sendContent(r, tar); err != nil { // the tar may end before the stream
		return fmt.Errorf("write %s: %w", p, err)
	}
	return nil
}
