package docker

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/sandpit-dev/sandpit"
)

// TestOthersContainers leaves containers alone that have our labels from their image.
func TestOthersContainers(t *testing.T) {
	t.Parallel()
	id := sandpit.NewID()
	for name, tc := range map[string]struct {
		labels map[string]string
		names  []string
		want   bool
	}{
		"ours":              {map[string]string{labelEphemeral: "1", labelID: string(id)}, []string{"/" + containerName(id)}, true},
		"no id":             {map[string]string{labelEphemeral: "1"}, []string{"/mine"}, false},
		"another name":      {map[string]string{labelEphemeral: "1", labelID: string(id)}, []string{"/mine"}, false},
		"an id that is bad": {map[string]string{labelEphemeral: "1", labelID: "x"}, []string{"/sandpit-x"}, false},
		"no name":           {map[string]string{labelEphemeral: "1", labelID: string(id)}, nil, false},
	} {
		if got := isSandbox(container.Summary{Labels: tc.labels, Names: tc.names}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// endless is a file of zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// impatient is a context that expires after a number of calls of Err.
type impatient struct {
	context.Context //nolint:containedctx // it is one

	looks int
}

func (c *impatient) Err() error {
	if c.looks--; c.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestArchiveBomb looks into a small file that unpacks to very much, until its caller has
// had enough.
func TestArchiveBomb(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bomb.tar.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	const size = 1 << 40 // as the head says
	archive := tar.NewWriter(packed)
	if err := archive.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o600, Size: size, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(archive, endless{}, 16<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(packed.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	ctx := &impatient{Context: context.WithoutCancel(t.Context()), looks: 100}
	if _, err := holdsImage(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that the time is up", err)
	}
}
