package documents_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
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
	// as says what the block is, if it is not a script: see kinds.
	as kind
	// elsewhere says why the block is not run, and what runs it.
	elsewhere string
}

// kind is what a block is.
type kind string

const (
	console  kind = "commands after $, each with its output"
	output   kind = "the output of the block before, but for white space"
	mcp      kind = "commands that speak MCP by their input and output"
	settings kind = "a configuration"
	recipes  kind = "a recipe of a template"
	routes   kind = "methods and paths of the API"
	usage    kind = "how a program is called, with flags in brackets"
	jsonText kind = "JSON"
	golang   kind = "statements of Go"
)

// id is what a command prints that makes a sandbox.
const id = `(?m)^s[a-z0-9]{19}$`

const (
	create  = "sandpit create --name work >/dev/null\n"
	project = "mkdir project; printf 'test:\\n\\t@echo tested\\n' >project/Makefile\n"
	recipe  = `cat >sandpit.toml <<END
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
	itself   = "it is this project's own tests or measurements"
	nightly  = "it needs Debian's packages; the nightly run builds the templates"
)

// examples are the blocks by their page and first line.
func examples() map[string]example {
	return map[string]example{
		"ARCHITECTURE.md:  sandpit run -- python3 x.py":       {elsewhere: "it is a drawing"},
		"README.md: $ sandpit run --":                         {as: console},
		"README.md: CGO_ENABLED=0 go run":                     {want: `gvisor[^\n]*\n(.*\n)*42\n`},
		"README.md: go test":                                  {elsewhere: ".ci/run"},
		"README.md: CGO_ENABLED=0 go install":                 {elsewhere: ".ci/run builds the program so"},
		"README.md: sandpit run -v":                           {setUp: project + "cp project/Makefile .\n", want: `(?m)^tested$`},
		"README.md: sandpit run --timeout 30s":                {setUp: "echo 'import sys; print(sys.argv[1])' >script.py\n", without: []string{"-it"}, want: `(?m)^--verbose\n(.*\n)*.*script\.py$`},
		"README.md: sandpit run ./rootfs.tar":                 {setUp: "cp \"$ROOT\" rootfs.tar\n", want: `(?m)^ID=busybox$`},
		"README.md: sandpit serve &":                          {setUp: project, without: []string{"sandpit serve", "sandpit shell"}, want: `(?m)^tested\nhttp://8000-s(.*\n)+`},
		"agent-models.md: [llm]":                              {as: settings},
		"agent-models.md: export OPENAI_API_KEY":              {elsewhere: "internal/app/cli tests what doctor says"},
		"agent-models.md: model = \"demo\"":                   {elsewhere: "agent/model/script follows it"},
		"agent-models.md: sandpit model-server":               {elsewhere: "the test of sandpit model-server starts one"},
		"agent.md: cat > hello.toml":                          {want: `(?m)^The file has one line\.$`},
		"agent.md: export ANTHROPIC_API_KEY":                  {elsewhere: "it needs a vendor; conformance/agent has a scripted one"},
		"agent.md: export SANDPIT_TEST_AGENT_MODEL":           {elsewhere: "it needs a vendor; conformance/agent has scripts"},
		"agent.md: a, err := agent.New":                       {as: golang},
		"aio.md: id=$(sandpit create --name work)":            {want: `"output":"hello\\n"`},
		"aio.md: {\"success\":true":                           {as: output},
		"api.md: GET    /v1/tokens":                           {as: routes},
		"api.md: {\"type\": \"about:blank\"":                  {as: jsonText},
		"api.md: c, err := client.FromEnv()":                  {as: golang},
		"attacks.md: go test":                                 {elsewhere: itself},
		"benchmarks.md: go run":                               {elsewhere: itself},
		"configuration.md: [sandbox]":                         {as: settings},
		"configuration.md: [[pool]]":                          {as: settings},
		"daytona-compatibility.md: SANDPIT_TEST":              {elsewhere: itself},
		"deploy.md: sandpit serve &":                          {without: []string{"sandpit serve"}, want: id},
		"deploy.md: printf":                                   {want: `^[0-9a-f]{64}  -`},
		"e2b-compatibility.md: go test":                       {elsewhere: itself},
		"from-daytona.md: node -e":                            {elsewhere: "conformance/daytona"},
		"from-daytona.md: sandpit serve":                      {elsewhere: "conformance/daytona"},
		"from-daytona.md: const image = Image.base":           {elsewhere: internet},
		"from-e2b.md: node -e":                                {elsewhere: "conformance/e2b"},
		"from-e2b.md: [preview]":                              {as: settings},
		"images.md: sandpit run python:3.12-slim":             {elsewhere: internet + "; internal/app/cli has scripts with a registry"},
		"images.md: [image]":                                  {as: settings},
		"interpreter.md: /.sandpit/sandpit-guest interpreter": {as: usage},
		"interpreter.md: import { Sandbox }":                  {elsewhere: nightly + " and conformance/e2b runs such programs"},
		"mcp.md: client = MultiServerMCPClient":               {elsewhere: "LangChain for Python is no package of Debian's; conformance/mcp runs the same in JavaScript"},
		"mcp.md: const client":                                {elsewhere: "conformance/mcp"},
		"mcp.md: POST /mcp?tools=shell":                       {elsewhere: "conformance/mcp speaks the protocol over HTTP; times and IDs are others each time"},
		"mcp.md: {\"mcpServers\": {":                          {elsewhere: "conformance/mcp has such files"},
		"network.md: [network]":                               {as: settings},
		"states.md: $ sandpit create":                         {as: console},
		"states.md: [":                                        {as: settings},
		"templates.md: name = \"tools\"":                      {as: recipes},
		"templates.md: start = \"python3":                     {as: recipes, setUp: "from = 'apt:bookworm'\n"},
		"terminals.md: id=$(sandpit create --name work)":      {want: `"cwd":"/tmp"(.*\n?)*"stdout":"/tmp\\n"`},
		"tls.md: [server]":                                    {as: settings},
		"api.md: curl -s -X POST localhost:8090/v1/sandboxes": {setUp: `sandpit image import "$ROOT" --name python:3.12-slim` + "\n", want: `"id":"s`},
		"docker.md: sandpit run --provider docker":            {elsewhere: "internal/app/cli has scripts for Docker"},
		"providers-e2b.md: export E2B_API_KEY":                {elsewhere: "provider/e2b runs the suite of providers; the example needs an account"},
		"providers-daytona.md: export DAYTONA_API_KEY":        {elsewhere: "it needs an account; provider/daytona tests with a server of its own"},
		"providers-daytona.md: [daytona]":                     {as: settings},
		"from-e2b.md: sandpit serve":                          {elsewhere: "conformance/e2b"},
		"providers.md: provider = [":                          {as: settings},
		"providers.md: $ sandpit providers":                   {elsewhere: "internal/app/cli; it needs an account"},
		"from-e2b.md: export SANDPIT_E2B_TEMPLATES":           {elsewhere: "conformance/e2b"},
		"from-e2b.md: export E2B_DOMAIN":                      {elsewhere: "it needs a domain"},
		"interpreter.md: sandpit serve":                       {elsewhere: nightly},
		"mcp.md: sandpit mcp python:3.12-slim": {
			as:    mcp,
			setUp: `sandpit image import "$ROOT" --name python:3.12-slim; mkdir project; echo '{"mcpServers": {}}' >mcp.json; sandpit create --name team` + "\n",
		},
		"mcp.md: sandpit template build builtin:browser": {elsewhere: nightly},
		"network.md: sandpit run --network":              {elsewhere: internet},
		"network.md: sandpit network show work": {
			setUp: "sandpit create --network --name work >/dev/null\n", without: []string{"log -f", "network test"},
			want: `203\.0\.113\.0/24`,
		},
		"network.md: export TOKEN=...":              {want: id},
		"previews.md: sandpit create --name work":   {want: `(?m)^http://8000-s`},
		"previews.md: sandpit url --files . work":   {setUp: create, want: `(?m)^http://8080-s`},
		"previews.md: sandpit run -p 8080:8000":     {without: []string{"http.server"}, want: id},
		"snapshots.md: sandpit snapshot create":     {setUp: create, want: id},
		"snapshots.md: sandpit upgrade-state":       {elsewhere: "internal/app/cli; no server may run"},
		"ssh.md: sandpit serve --ssh":               {elsewhere: "internal/app/cli"},
		"ssh.md: sandpit ssh work":                  {elsewhere: "internal/app/cli; it waits for a person"},
		"ssh.md: sandpit ssh-key add":               {elsewhere: "internal/app/cli; it waits for a person"},
		"states.md: sandpit stop work":              {setUp: create},
		"states.md: sandpit policy work":            {setUp: create, want: `never`},
		"templates.md: sandpit template build -t":   {setUp: recipe, want: `(?m)^made$`},
		"templates.md: export SANDPIT_URL=https://": {setUp: recipe, without: []string{"SANDPIT_URL"}, want: id},
		"templates.md: sandpit template ls":         {elsewhere: nightly},
		"templates.md: sandpit create --secret": {
			setUp: recipe + "sandpit template build -t web . >/dev/null\nexport API_TOKEN=secret\necho key >key.txt\n", want: id,
		},
		"tls.md: sandpit serve":                  {elsewhere: "internal/app/cli"},
		"volumes.md: sandpit volume create data": {want: `(?m)^hello$`},
		"volumes.md: sandpit run --temporary":    {without: []string{"make test"}, want: id},
	}
}

// TestExamples runs every example of README.md and docs. One that is new fails the test
// until there is a line for it, and so does a line without an example.
func TestExamples(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	r := newReader(t)
	known, used := examples(), make(map[string]bool)
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		last := "" // what the block before has put out
		for _, block := range blocksOf(string(text)) {
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
			used[key] = true
			if e := known[key]; e.elsewhere == "" {
				t.Run(name, func(t *testing.T) { last = r.try(t, e, block, last) })
			}
		}
	}
	for key := range known {
		if !used[key] {
			t.Errorf("there is no block %q", key)
		}
	}
}

// blocksOf returns the examples of a page: indented paragraphs, those that follow each other
// together unless one is JSON or a command, and what is between fences.
func blocksOf(page string) (blocks [][]string) {
	alone := regexp.MustCompile(`^(\{|sandpit |curl |export |[a-z]+=\$\()`)
	together := false
	fence := regexp.MustCompile("(?ms)^```[a-z]*\\n(.*?)\\n```$")
	page = fence.ReplaceAllStringFunc(page, func(text string) string {
		inside := fence.FindStringSubmatch(text)[1]
		return "    " + strings.ReplaceAll(inside, "\n", "\n    ")
	})
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
		switch {
		case len(lines) == 0:
			together = false
		case together && !strings.HasPrefix(lines[0], "{") && alone.MatchString(blocks[len(blocks)-1][0]) == alone.MatchString(lines[0]):
			blocks[len(blocks)-1] = append(append(blocks[len(blocks)-1], ""), lines...)
		default:
			blocks, together = append(blocks, lines), true
		}
	}
	return blocks
}

// reader is a user with a server that follows the pages.
type reader struct {
	environ      []string
	address, key string
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
	if err := os.WriteFile(root, testdocker.Tar(t, append(testdocker.BusyboxFiles(t),
		testdocker.File{Name: "etc/os-release", Mode: 0o644, Content: []byte("ID=busybox\n")})), 0o644); err != nil {
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
	r.key = strings.TrimSpace(key)
	r.environ = append(r.environ, "KEY="+r.key)
	return r
}

// try runs a block, and removes what it made. last is what the block before has put out.
func (r *reader) try(t *testing.T, e example, block []string, last string) (out string) {
	t.Helper()
	dir := t.TempDir()
	text := strings.Join(block, "\n") + "\n"
	switch e.as { //nolint:exhaustive // the others need the server, see below
	case output:
		if want, got := withoutSpace(text), withoutSpace(last); !strings.HasSuffix(got, want) {
			t.Errorf("the output is\n%s\nwant\n%s", got, want)
		}
		return ""
	case settings:
		checkSettings(t, text)
		return ""
	case jsonText:
		if !json.Valid([]byte(text)) {
			t.Errorf("it is no JSON:\n%s", text)
		}
		return ""
	case golang:
		checkGo(t, text)
		return ""
	case routes:
		checkRoutes(t, block)
		return ""
	}
	defer func() {
		if out, err := r.run(t, dir, "sandpit rm -f --all"); err != nil {
			t.Errorf("remove the sandboxes: %v\n%s", err, out)
		}
	}()
	switch e.as { //nolint:exhaustive // the others are above, or a script
	case recipes:
		r.checkRecipe(t, dir, e.setUp+text)
		return ""
	case mcp:
		r.checkMCP(t, dir, e.setUp, block)
		return ""
	case console:
		r.checkConsole(t, dir, block)
		return ""
	case usage:
		r.checkUsage(t, dir, text)
		return ""
	}
	var script strings.Builder
	script.WriteString("set -e\n" + e.setUp)
	for _, line := range block {
		left := false
		for _, part := range e.without {
			left = left || strings.Contains(line, part)
		}
		if !left {
			script.WriteString(r.here(line) + "\n")
		}
	}
	out, err := r.run(t, dir, script.String())
	if err != nil || !regexp.MustCompile(e.want).MatchString(out) {
		t.Errorf("%v, want an output that matches %q\n%s\n%s", err, e.want, &script, out)
	}
	return out
}

// here returns a line with the address of the test's server, and with the program that is
// built already.
func (r *reader) here(line string) string {
	return strings.NewReplacer("127.0.0.1:8090", r.address, "localhost:8090", r.address,
		"CGO_ENABLED=0 go run ./cmd/sandpit", "sandpit").Replace(line)
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
