package documents_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testengine"
	"github.com/sandpit-dev/sandpit/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long an example may take.
const limit = 2 * time.Minute

// example is what a test does with a block of commands in a page.
type example struct {
	// setUp is a script that makes what the page takes for granted.
	setUp string
	// without are parts of lines that are not run, since they wait for a person or need what
	// tests do not have.
	without []string
	// want matches the output.
	want string
	// elsewhere says why the block is not run, and what runs it.
	elsewhere string
}

// id is what a command prints that makes a sandbox.
const id = `(?m)^s[a-z0-9]{19}$`

const (
	create = "sandpit create --name work >/dev/null\n"
	recipe = `cat >sandpit.toml <<END
from = "$ROOT"
[[step]]
run = """
printf '#!/bin/sh\\necho made\\n' >/bin/make
printf '#!/bin/sh\\nexec httpd -f -p 8000\\n' >/bin/python3
chmod +x /bin/make /bin/python3
"""
END
`
	internet = "it needs the internet"
	nightly  = "it needs Debian's packages; the nightly run builds the templates"
)

// examples are the blocks by their page and first line.
func examples() map[string]example {
	return map[string]example{
		"aio.md: id=$(sandpit create --name work)":            {want: `"output":"hello\\n"`},
		"api.md: curl -s -X POST localhost:8090/v1/sandboxes": {setUp: `sandpit image import "$ROOT" --name python:3.12-slim` + "\n", want: `"id":"s`},
		"docker.md: sandpit run --provider docker":            {elsewhere: "internal/cli has scripts for Docker"},
		"from-e2b.md: sandpit serve":                          {elsewhere: "conformance/e2b"},
		"from-e2b.md: export SANDPIT_E2B_TEMPLATES":           {elsewhere: "conformance/e2b"},
		"from-e2b.md: export E2B_DOMAIN":                      {elsewhere: "it needs a domain"},
		"interpreter.md: sandpit serve":                       {elsewhere: nightly},
		"mcp.md: sandpit mcp python:3.12-slim":                {elsewhere: "conformance/mcp"},
		"mcp.md: sandpit mcp --mcp-config":                    {elsewhere: "conformance/mcp"},
		"mcp.md: sandpit template build builtin:browser":      {elsewhere: nightly},
		"network.md: sandpit run --network":                   {elsewhere: internet},
		"network.md: sandpit network show work": {
			setUp: "sandpit create --network --name work >/dev/null\n", without: []string{"log -f", "network test"},
			want: `203\.0\.113\.0/24`,
		},
		"network.md: export TOKEN=...":              {want: id},
		"previews.md: sandpit create --name work":   {want: `(?m)^http://8000-s`},
		"previews.md: sandpit url --files . work":   {setUp: create, want: `(?m)^http://8080-s`},
		"previews.md: sandpit run -p 8080:8000":     {without: []string{"http.server"}, want: id},
		"snapshots.md: sandpit upgrade-state":       {elsewhere: "internal/cli; no server may run"},
		"ssh.md: sandpit serve --ssh":               {elsewhere: "internal/cli"},
		"ssh.md: sandpit ssh work":                  {elsewhere: "internal/cli; it waits for a person"},
		"ssh.md: sandpit ssh-key add":               {elsewhere: "internal/cli; it waits for a person"},
		"states.md: sandpit stop work":              {setUp: create},
		"states.md: sandpit policy work":            {setUp: create, want: `never`},
		"templates.md: sandpit template build -t":   {setUp: recipe, want: `(?m)^made$`},
		"templates.md: export SANDPIT_URL=https://": {setUp: recipe, without: []string{"SANDPIT_URL"}, want: id},
		"templates.md: sandpit template ls":         {elsewhere: nightly},
		"templates.md: sandpit create --secret": {
			setUp: recipe + "sandpit template build -t web . >/dev/null\nexport API_TOKEN=secret\necho key >key.txt\n", want: id,
		},
		"tls.md: sandpit serve":                  {elsewhere: "internal/cli"},
		"volumes.md: sandpit volume create data": {want: `(?m)^hello$`},
		"volumes.md: sandpit run --temporary":    {without: []string{"make test"}, want: id},
	}
}

// TestExamples runs every block of commands in docs. One that is new fails the test until
// there is a line for it.
func TestExamples(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	r := newReader(t)
	known := examples()
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range commandBlocks(string(text)) {
			name := filepath.Base(page) + ": " + block[0]
			key := ""
			for k := range known {
				if strings.HasPrefix(name, k) && len(k) > len(key) {
					key = k
				}
			}
			if key == "" {
				t.Errorf("there is no line for the block %q", name)
				continue
			}
			if e := known[key]; e.elsewhere == "" {
				t.Run(name, func(t *testing.T) { r.try(t, e, block) })
			}
		}
	}
}

// commandBlocks returns the indented paragraphs whose first line is a command.
func commandBlocks(page string) (blocks [][]string) {
	isCommand := regexp.MustCompile(`^(sandpit |curl |export |[a-z]+=\$\()`)
	for paragraph := range strings.SplitSeq(page, "\n\n") {
		var lines []string
		for line := range strings.Lines(strings.Trim(paragraph, "\n")) {
			text, ok := strings.CutPrefix(line, "    ")
			if !ok {
				lines = nil
				break
			}
			lines = append(lines, strings.TrimRight(text, "\n"))
		}
		if len(lines) > 0 && isCommand.MatchString(lines[0]) {
			blocks = append(blocks, lines)
		}
	}
	return blocks
}

// reader is somebody with a server who tries what the pages say.
type reader struct {
	environ []string
	address string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	dir := t.TempDir()
	program, bin, root := testengine.Path(t), filepath.Join(dir, "bin"), filepath.Join(dir, "root.tar")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(bin, "sandpit")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root, testdocker.Tar(t, testdocker.BusyboxFiles(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	environ := append(testengine.Environ(dir), "SANDPIT_SERVER_LISTEN=127.0.0.1:0", "ROOT="+root)
	server := testserver.Start(t, environ)
	t.Cleanup(func() { server.End(t, syscall.SIGTERM) })
	r := &reader{environ: append(environ, "PATH="+bin+":"+os.Getenv("PATH")), address: strings.TrimPrefix(server.URL, "http://")}
	key, err := r.run(t, t.TempDir(), "sandpit key create -q --owner local")
	if err != nil {
		t.Fatalf("create a key: %v\n%s", err, key)
	}
	r.environ = append(r.environ, "KEY="+strings.TrimSpace(key))
	return r
}

// try runs a block, and removes what it made.
func (r *reader) try(t *testing.T, e example, block []string) {
	t.Helper()
	dir := t.TempDir()
	defer func() {
		if out, err := r.run(t, dir, "sandpit rm -f --all"); err != nil {
			t.Errorf("remove the sandboxes: %v\n%s", err, out)
		}
	}()
	var script strings.Builder
	script.WriteString("set -e\n" + e.setUp)
	here := strings.NewReplacer("127.0.0.1:8090", r.address, "localhost:8090", r.address)
	for _, line := range block {
		left := false
		for _, part := range e.without {
			left = left || strings.Contains(line, part)
		}
		if !left {
			script.WriteString(here.Replace(line) + "\n")
		}
	}
	out, err := r.run(t, dir, script.String())
	if err != nil || !regexp.MustCompile(e.want).MatchString(out) {
		t.Errorf("%v, want an output that matches %q\n%s\n%s", err, e.want, &script, out)
	}
}

func (r *reader) run(t *testing.T, dir, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, r.environ
	out, err := cmd.CombinedOutput()
	return string(out), err
}
