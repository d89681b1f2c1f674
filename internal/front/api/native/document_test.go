package native_test

import (
	"bytes"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// TestDocument compares the description with the committed one, so that no developer
// changes the API without meaning to.
func TestDocument(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	got := r.want(t, ask{method: "GET", path: "/openapi.json"}, http.StatusOK, nil)
	golden := filepath.Join("..", "..", "..", "..", "docs", "openapi.json")
	text := append(bytes.TrimSpace(got.body), '\n')
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("docs/openapi.json is out of date; run the test with -update (-want +got):\n%s", diff)
	}
	if strings.Contains(string(text), "ErrorModel") {
		t.Error("it tells of errors that are never sent")
	}
}

// TestPage looks at the page for people: it must load nothing, and have everything.
func TestPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	g := r.want(t, ask{method: "GET", path: "/docs"}, http.StatusOK, nil)
	policy := g.header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "script") {
		t.Errorf("policy %q", policy)
	}
	page := string(g.body)
	for _, bad := range []string{"<script", "http://", "https://", "javascript:", "<no value>", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, good := range []string{"/v1/sandboxes/{id}/pause", "Idempotency-Key", `id="schema-Problem"`, "timeout_seconds"} {
		if !strings.Contains(page, good) {
			t.Errorf("the page lacks %q", good)
		}
	}
	for _, m := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, `id="`+m[1]+`"`) {
			t.Errorf("the page links to %q, and has no such part", m[1])
		}
	}
}

// TestGeneratedClient makes a client of the description, with another project's
// generator, and compiles it.
func TestGeneratedClient(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles a generator")
	}
	r := newRig(t, nil)
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	tools := filepath.Join(root, "tools", "openapi")
	for name, text := range map[string][]byte{
		"openapi.json": r.want(t, ask{method: "GET", path: "/openapi-3.0.json"}, http.StatusOK, nil).body,
		"go.mod":       read(t, filepath.Join(tools, "go.mod")),
		"go.sum":       read(t, filepath.Join(tools, "go.sum")),
		"use.go": []byte(`package client

import "context"

// Use has a call of each sort.
func Use(ctx context.Context, c *ClientWithResponses) (string, error) {
	made, err := c.CreateSandboxWithResponse(ctx, nil, CreateSandbox{})
	if err != nil {
		return "", err
	}
	page, err := c.ListSandboxesWithResponse(ctx, &ListSandboxesParams{})
	if err != nil {
		return "", err
	}
	return made.JSON201.Id + page.JSON200.Items[0].Id, nil
}
`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	client := filepath.Join(dir, "client.go")
	goTool(t, root, "tool", "-modfile="+filepath.Join(tools, "go.mod"), "oapi-codegen",
		"-generate", "types,client", "-package", "client", "-o", client, filepath.Join(dir, "openapi.json"))
	goTool(t, dir, "vet", "-mod=mod", ".")
	if text := read(t, client); !strings.Contains(string(text), "func (c *Client) StreamEvents(") {
		t.Error("the client cannot listen to events")
	}
}

func read(tb testing.TB, path string) []byte {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

func goTool(tb testing.TB, dir string, args ...string) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
