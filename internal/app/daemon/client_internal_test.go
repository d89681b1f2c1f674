package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// TestClientFiles moves files by the Go client as users do, in a sandbox of a server.
func TestClientFiles(t *testing.T) {
	t.Parallel()
	w := newTenancy(t)
	c, err := client.New(client.Options{URL: w.url, Key: w.bob})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, box := t.Context(), c.Sandboxes.Open(sandpit.ID(w.ids["sandbox"]))
	if err := box.WriteFile(ctx, "a dir/b", []byte("one\xff")); err != nil {
		t.Fatal(err)
	}
	if got, err := box.ReadFile(ctx, "/workspace/a dir/b"); err != nil || string(got) != "one\xff" {
		t.Errorf("read: %q, %v", got, err)
	}
	if _, err := box.ReadFile(ctx, "none"); sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(err.Error(), "not found") {
		t.Errorf("read a missing file: %v", err)
	}
	out := t.TempDir()
	if skipped, err := box.CopyFrom(ctx, "a dir", filepath.Join(out, "copy")); err != nil || len(skipped) != 0 {
		t.Fatalf("copy out: %v, %v", skipped, err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "copy", "b")); err != nil || string(got) != "one\xff" {
		t.Errorf("the copy: %q, %v", got, err)
	}
	if err := box.CopyTo(ctx, filepath.Join(out, "copy"), "back/"); err != nil {
		t.Fatal(err)
	}
	if r, err := box.Run(ctx, "cat /workspace/back/copy/b"); err != nil || r.ExitCode != 0 || string(r.StdoutBytes) != "one\xff" || r.Stdout != "one\uFFFD" {
		t.Errorf("copied back, and read by a command: %+v, %v", r, err)
	}
}
