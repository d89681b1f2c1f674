package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/cli"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// run runs the command line in this process.
func run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = cli.Run(t.Context(), args, cli.Streams{In: bytes.NewReader(nil), Out: &out, Err: &errs}, config.Options{
		Environ: []string{"SANDPIT_CONFIG=" + os.DevNull}, UID: 1000, Home: t.TempDir(),
	})
	return out.String(), errs.String(), status
}

// TestPagesAreUpToDate compares docs/cli with what go generate writes.
func TestPagesAreUpToDate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, stderr, status := run(t, "docs", "markdown", dir); status != 0 {
		t.Fatalf("exit status %d: %s", status, stderr)
	}
	const kept = "../../../docs/cli"
	if diff := cmp.Diff(pages(t, kept), pages(t, dir)); diff != "" {
		t.Errorf("docs/cli is not what go generate ./internal/app/cli makes (-kept, +made):\n%s", diff)
	}
}

func pages(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		all[e.Name()] = string(readFile(t, filepath.Join(dir, e.Name())))
	}
	return all
}

// TestManualPages makes pages for man, over older ones.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	for range 2 {
		if _, stderr, status := run(t, "docs", "man", dir); status != 0 {
			t.Fatalf("exit status %d: %s", status, stderr)
		}
		if text := string(readFile(t, filepath.Join(dir, "sandpit-exec.1"))); !bytes.Contains([]byte(text), []byte(".TH")) {
			t.Errorf("the page is %.100q", text)
		}
		writeFile(t, filepath.Join(dir, "sandpit-gone.1"), "of an older version")
	}
	if _, stderr, status := run(t, "docs", "man", dir); status != 0 {
		t.Fatalf("exit status %d: %s", status, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "sandpit-gone.1")); err == nil {
		t.Error("the page of a command that is gone is still there")
	}
	if _, _, status := run(t, "docs", "man", "/proc/nowhere"); status != 125 {
		t.Errorf("exit status %d for a directory that cannot be made, want 125", status)
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
