package compare_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

var update = flag.Bool("update", false, "rewrite docs/differences.md")

func TestMain(m *testing.M) { os.Exit(testdocker.Main(m)) }

// long bounds what takes a moment.
const long = 2 * time.Minute

// kind is a kind of provider, by the name it has in the table.
type kind string

const (
	onGVisor kind = "gvisor"
	onDocker kind = "docker"
)

// place is where programs run: a provider of one kind and a sandbox of it that
// programs share.
type place struct {
	kind     kind
	provider sandpit.Provider
	image    sandpit.Image
	box      sandpit.Instance
}

// newPlace returns a place that ends with the test.
func newPlace(t *testing.T, k kind) *place {
	t.Helper()
	p := &place{kind: k, image: rootFS(t)}
	switch k {
	case onGVisor:
		p.provider = openGVisor(t)
	case onDocker:
		p.provider = openDocker(t)
	}
	t.Cleanup(func() {
		if err := p.provider.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	p.box = p.create(t, sandpit.Spec{Env: map[string]string{"OF_THE_BOX": "yes", "BOTH": "the box"}})
	return p
}

func openGVisor(t *testing.T) sandpit.Provider {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"run", "scratch", "images"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), Images: images, Engine: testengine.Path(t),
		Defaults: testengine.Limits(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func openDocker(t *testing.T) sandpit.Provider {
	t.Helper()
	p, err := docker.New(testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: testdocker.Host(t)}, StateDir: t.TempDir(), Guest: testdocker.Guest(t),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rootFS is the file that all sandboxes are made from.
func rootFS(t *testing.T) sandpit.Image {
	t.Helper()
	files := append(testdocker.BusyboxFiles(t),
		testdocker.File{Name: "data/", Mode: 0o755},
		testdocker.File{Name: "data/text", Mode: 0o644, Content: []byte("from the image\n")},
		testdocker.File{Name: "data/plain", Mode: 0o644, Content: []byte("#!/bin/sh\necho never\n")},
		testdocker.File{Name: "data/script", Mode: 0o755, Content: []byte("#!/bin/sh\necho script $#\n")},
		testdocker.File{Name: "data/lost", Mode: 0o755, Content: []byte("#!/no/such/interpreter\n")},
		testdocker.File{Name: "data/junk", Mode: 0o755, Content: []byte{0x7f, 'E', 'L', 'F', 1, 2, 3}},
		testdocker.File{Name: "data/link", Link: "text"},
		testdocker.File{Name: "home/app/", Mode: 0o777},
		testdocker.File{Name: "tmp/", Mode: 0o1777},
	)
	path := filepath.Join(t.TempDir(), "rootfs.tar")
	if err := os.WriteFile(path, testdocker.Tar(t, files), 0o600); err != nil {
		t.Fatal(err)
	}
	return sandpit.Image(path)
}

// create makes a sandbox that is destroyed when the test ends.
func (p *place) create(t *testing.T, spec sandpit.Spec) sandpit.Instance {
	t.Helper()
	spec.Image = p.image
	box, err := p.provider.Create(within(t), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		testengine.Skip(t, "%s: %v", p.kind, err)
	}
	if err != nil {
		t.Fatalf("%s: %v (hint: %s)", p.kind, err, sandpit.HintOf(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := box.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return box
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	t.Cleanup(cancel)
	return ctx
}
