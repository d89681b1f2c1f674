package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
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

// TestClientSessions runs commands in a terminal session with the Go client.
func TestClientSessions(t *testing.T) {
	t.Parallel()
	w := newTenancy(t)
	c, err := client.New(client.Options{URL: w.url, Key: w.bob})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, box := t.Context(), c.Sandboxes.Open(sandpit.ID(w.ids["sandbox"]))
	s, err := box.OpenSession(ctx, client.SessionOptions{Name: "work", Dir: "/workspace/dir", Env: map[string]string{"NAME": "value"}})
	if err != nil || s.ID != "work" {
		t.Fatalf("open: %+v, %v", s, err)
	}
	if r, err := s.Run(ctx, `here=$PWD; echo "$NAME"; false`); err != nil || r.Stdout != "value\n" || r.ExitCode != 1 {
		t.Errorf("run: %+v, %v", r, err)
	}
	r, err := s.RunWith(ctx, client.SessionRunOptions{Stdin: "input", SeparateStderr: true}, `cat; echo "$here" >&2`)
	if err != nil || r.Stdout != "input" || !strings.HasSuffix(r.Stderr, "/workspace/dir\n") || r.ExitCode != 0 {
		t.Errorf("run with the state of the first command: %+v, %v", r, err)
	}
	list, err := box.ListSessions(ctx)
	if err != nil || !slices.ContainsFunc(list, func(s *client.Session) bool { return s.ID == "work" && s.Runs == 2 }) {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := box.OpenSession(ctx, client.SessionOptions{Name: "work"}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("open a second one of the name: %v", err)
	}
	for range 2 {
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := s.Run(ctx, "true"); err == nil {
		t.Error("a closed session runs a command")
	}
}

// TestClientExecute runs code in a real sandbox with the Go client.
func TestClientExecute(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	r := start(t, cfg, registrations())
	c, err := client.New(client.Options{URL: "unix://" + r.Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.WithSandbox(t.Context(), client.CreateRequest{}, func(ctx context.Context, s *client.Sandbox) error {
		if e, err := s.Execute(ctx, "bash", "x=6; echo out; echo err >&2; false"); err != nil || e.Stdout != "out\n" || e.Stderr != "err\n" ||
			e.Error == nil || e.Error.Name != "ExitCode" || e.Error.Value != "1" {
			t.Errorf("bash: %+v, %v", e, err)
		}
		if e, err := s.Execute(ctx, "bash", "echo $((x * 7))"); err != nil || e.Stdout != "42\n" || e.Error != nil {
			t.Errorf("bash with the variable of the first run: %+v, %v", e, err)
		}
		if e, err := s.Execute(ctx, "python", "[6 * 7]"); err != nil || len(e.Results) != 1 || e.Results[0].Text != "[42]" || !e.Results[0].Main || string(e.Results[0].JSON) != "[42]" {
			t.Errorf("python: %+v, %v", e, err)
		}
		if e, err := s.Execute(ctx, "python", "1 / 0"); err != nil || e.Error == nil || e.Error.Name != "ZeroDivisionError" || e.Error.Traceback == "" {
			t.Errorf("an exception: %+v, %v", e, err)
		}
		if _, err := s.Execute(ctx, "cobol", ""); err == nil {
			t.Error("an unknown language")
		}
		return s.CloseInterpreter()
	})
	if err != nil {
		t.Fatal(err)
	}
}
