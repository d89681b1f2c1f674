package sandpit_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sandpit-dev/sandpit"

// arrows says which packages of this module a package may import, tests left
// aside. "." is the root; a name that ends in "/..." means everything below.
// A package that has no line here does not pass.
var arrows = map[string][]string{
	".":                          {},
	"bench":                      {".", "client", "internal/guestbin", "internal/image", "internal/manager", "internal/store", "internal/tool", "internal/workspace", "provider/docker", "provider/gvisor"},
	"client":                     {".", "internal/config", "internal/envd", "internal/wire", "internal/workspace"},
	"conformance/attacks":        {},
	"conformance/attacks/owners": {},
	"conformance/chaos":          {},
	"conformance/compare":        {},
	"conformance/documents":      {},
	"conformance/e2b":            {},
	"conformance/mcp":            {},
	"conformance/network":        {},
	"conformance/outage":         {},
	"conformance/survive":        {},
	"cmd/sandpit":                {"internal/cli", "internal/guest", "provider/gvisor"},
	"cmd/sandpit-guest":          {"internal/guest"},
	"deploy":                     {},
	"provider/docker":            {".", "internal/envd", "internal/guest", "internal/guestbin", "internal/hostpath", "internal/image", "internal/liveness", "internal/tether"},
	"provider/fake":              {".", "internal/envd", "internal/guest", "internal/liveness"},
	"provider/gvisor":            {".", "internal/archive", "internal/beneath", "internal/envd", "internal/guest", "internal/guestbin", "internal/image", "internal/liveness", "internal/network", "internal/network/dialer", "internal/network/policy", "internal/network/route"},
	"provider/providertest":      {"."},
	"internal/api":               {".", "internal/clock", "internal/lifeline", "internal/manager", "internal/memory", "internal/share", "internal/store", "internal/wire"},
	"internal/api/aio":           {".", "internal/api", "internal/manager", "internal/memory", "internal/tool"},
	"internal/api/data":          {".", "internal/api", "internal/manager", "internal/memory", "internal/shell", "internal/wire", "internal/workspace"},
	"internal/api/e2b":           {".", "internal/api", "internal/diskspace", "internal/image", "internal/manager", "internal/memory", "internal/share", "internal/store"},
	"internal/api/mcp":           {".", "internal/api", "internal/manager", "internal/mcp", "internal/memory", "internal/tool", "internal/wire"},
	"internal/api/native":        {".", "internal/api", "internal/hostpath", "internal/image", "internal/manager", "internal/memory", "internal/queue", "internal/sshkey", "internal/store", "internal/wire", "internal/workspace"},
	"internal/applet":            {".", "internal/beneath"},
	"internal/archive":           {"."},
	"internal/audit":             {".", "internal/clock", "internal/store"},
	"internal/beneath":           {},
	"internal/browser":           {".", "internal/memory"},
	"internal/cli":               {".", "client", "internal/config", "internal/daemon", "internal/hostpath", "internal/mcp", "internal/mcpclient", "internal/screen", "internal/tool", "internal/usage", "internal/workspace"},
	"internal/clock":             {},
	"internal/config":            {".", "internal/network/policy"},
	"internal/daemon":            {".", "internal/api/...", "internal/archive", "internal/audit", "internal/beneath", "internal/clock", "internal/config", "internal/debian", "internal/diskspace", "internal/gateway", "internal/guestbin", "internal/hostpath", "internal/image", "internal/manager", "internal/memory", "internal/network/policy", "internal/network/route", "internal/npm", "internal/publish", "internal/queue", "internal/screen", "internal/share", "internal/sshd", "internal/sshkey", "internal/store", "internal/telemetry", "internal/tempdir", "internal/template", "internal/tlscert", "internal/token", "internal/tree", "internal/usage", "internal/wire", "provider/docker", "provider/gvisor"},
	"internal/debian":            {".", "internal/mirror"},
	"internal/diskspace":         {"."},
	"internal/envd":              {".", "internal/gen/...", "internal/liveness", "internal/memory"},
	"internal/envdtest":          {"internal/gen/..."},
	"internal/gateway":           {".", "internal/api", "internal/clock", "internal/manager", "internal/store", "internal/token", "internal/wire"},
	"internal/gen/...":           {"internal/gen/..."},
	"internal/guest":             {".", "internal/applet", "internal/beneath", "internal/gen/...", "internal/interpreter", "internal/journal", "internal/site", "internal/tether", "internal/tree", "internal/watch"},
	"internal/guestbin":          {},
	"internal/guestbin/build":    {"internal/guestbin"},
	"internal/hostpath":          {"."},
	"internal/image":             {".", "internal/diskspace", "internal/network/policy", "internal/network/route", "internal/share"},
	"internal/interpreter":       {".", "internal/memory"},
	"internal/journal":           {},
	"internal/layer":             {".", "internal/memory"},
	"internal/lifeline":          {"internal/clock"},
	"internal/liveness":          {"."},
	"internal/manager":           {".", "internal/clock", "internal/diskspace", "internal/layer", "internal/queue", "internal/share", "internal/store", "internal/tempdir", "internal/usage"},
	"internal/mcp":               {".", "internal/mcpclient", "internal/memory", "internal/tool"},
	"internal/mcpclient":         {".", "internal/applet", "internal/memory"},
	"internal/memory":            {".", "internal/share"},
	"internal/mirror":            {"."},
	"internal/network":           {".", "internal/network/policy"},
	"internal/network/dialer":    {".", "internal/network/route"},
	"internal/network/policy":    {"."},
	"internal/network/route":     {},
	"internal/npm":               {".", "internal/mirror"},
	"internal/publish":           {"."},
	"internal/queue":             {".", "internal/clock"},
	"internal/queue/queuetest":   {".", "internal/queue"},
	"internal/screen":            {"."},
	"internal/share":             {"."},
	"internal/shell":             {".", "internal/memory"},
	"internal/site":              {".", "internal/beneath"},
	"internal/sshd":              {".", "internal/api", "internal/manager", "internal/memory", "internal/share", "internal/sshkey", "internal/store"},
	"internal/sshkey":            {".", "internal/clock", "internal/lifeline", "internal/store"},
	"internal/store":             {".", "internal/memory", "internal/queue"},
	"internal/telemetry":         {".", "internal/config", "internal/manager", "internal/queue", "internal/share"},
	"internal/tempdir":           {".", "internal/beneath"},
	"internal/template":          {".", "internal/debian", "internal/image", "internal/npm", "internal/workspace"},
	"internal/testdocker":        {"internal/testengine"},
	"internal/testengine":        {"."},
	"internal/testgvisor":        {".", "internal/image", "internal/testengine", "provider/gvisor"},
	"internal/testserver":        {"internal/testengine"},
	"internal/testtools":         {".", "internal/testengine"},
	"internal/testuser":          {},
	"internal/tether":            {},
	"internal/tlscert":           {"."},
	"internal/token":             {".", "internal/clock", "internal/lifeline", "internal/store"},
	"internal/tool":              {".", "internal/applet", "internal/browser", "internal/interpreter", "internal/mcpclient", "internal/memory", "internal/shell", "internal/workspace"},
	"internal/tree":              {".", "internal/beneath"},
	"internal/usage":             {"."},
	"internal/watch":             {"."},
	"internal/wire":              {"."},
	"internal/workspace":         {".", "internal/applet", "internal/beneath", "internal/memory", "internal/site", "internal/tree"},
}

// owners says which packages may import a dependency that is heavy, or that
// would otherwise spread; tests included.
var owners = map[string][]string{
	"connectrpc.com":                         {"internal/api/...", "internal/envd", "internal/gen/...", "internal/guest", "provider/fake"},
	"github.com/BurntSushi/toml":             {"internal/config", "internal/template"},
	"github.com/ProtonMail/go-crypto":        {"internal/debian"},
	"github.com/docker/cli":                  {"internal/image"},
	"github.com/google/go-containerregistry": {"internal/image", "internal/testdocker"},
	"github.com/minio":                       {"internal/archive"},
	"github.com/moby":                        {"internal/template", "internal/testdocker", "provider/docker"},
	"github.com/google/jsonschema-go":        {"internal/tool"},
	"github.com/lmittmann/tint":              {"internal/telemetry"},
	"github.com/ulikunitz/xz":                {"internal/debian"},
	"github.com/vishvananda/netlink":         {"conformance/attacks/owners", "conformance/network"},
	"github.com/modelcontextprotocol/go-sdk": {"bench", "conformance/documents", "conformance/mcp", "internal/mcp", "internal/mcpclient"},
	"github.com/pkg/sftp":                    {"internal/sshd"},
	"github.com/prometheus":                  {"deploy", "internal/telemetry"},
	"go.opentelemetry.io":                    {"internal/telemetry"},
	"github.com/redis/go-redis":              {"internal/queue"},
	"github.com/spf13/cobra":                 {"internal/cli"},
	"go.yaml.in/yaml":                        {"deploy"},
	"golang.org/x/crypto/acme":               {"internal/tlscert"},
	"golang.org/x/crypto/ssh":                {"conformance/attacks/owners", "internal/sshd", "internal/sshkey"},
	"gvisor.dev/gvisor":                      {"internal/network", "provider/gvisor"},
	"k8s.io":                                 {"provider/kubernetes"},
	"modernc.org/sqlite":                     {"internal/store"},
	"mvdan.cc/sh":                            {"internal/screen"},
}

// maxMain is how many lines a main.go may have.
const maxMain = 40

// source is one Go file, as far as these tests look at it.
type source struct {
	dir       string // below the root, with slashes; "." is the root itself
	name      string
	imports   []string
	lines     int
	doc       bool // has a package comment
	generated bool
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func TestArrows(t *testing.T)           { t.Parallel(); report(t, badArrows(sources(t))) }
func TestDependencyOwners(t *testing.T) { t.Parallel(); report(t, badOwners(sources(t))) }
func TestRootImports(t *testing.T)      { t.Parallel(); report(t, badRoot(sources(t))) }
func TestCommandsAreThin(t *testing.T)  { t.Parallel(); report(t, badCommands(sources(t))) }
func TestPackageComments(t *testing.T)  { t.Parallel(); report(t, badComments(sources(t))) }

// TestRulesCatch plants one breach of each rule.
func TestRulesCatch(t *testing.T) {
	t.Parallel()
	good := source{dir: "internal/daemon", name: "a.go", imports: []string{"os", module + "/internal/config"}, doc: true}
	for name, tc := range map[string]struct {
		rule   func([]source) []string
		breach source
	}{
		"upward import":   {badArrows, source{dir: "internal/config", imports: []string{module + "/internal/daemon"}}},
		"new package":     {badArrows, source{dir: "internal/new"}},
		"below a package": {badArrows, source{dir: "internal/config/new"}},
		"no owner":        {badOwners, source{dir: "internal/daemon", imports: []string{"gvisor.dev/gvisor/runsc/cli"}}},
		"owner's child":   {badOwners, source{dir: "internal/configs", imports: []string{"github.com/BurntSushi/toml"}}},
		"root":            {badRoot, source{dir: ".", imports: []string{"golang.org/x/sys/unix"}}},
		"long main":       {badCommands, source{dir: "cmd/sandpit", name: "main.go", lines: maxMain + 1}},
		"more than main":  {badCommands, source{dir: "cmd/sandpit", name: "more.go"}},
		"no comment":      {badComments, source{dir: "internal/cli"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.rule([]source{good}); len(got) != 0 {
				t.Errorf("the good file: %q, want nothing", got)
			}
			if got := tc.rule([]source{good, tc.breach}); len(got) != 1 {
				t.Errorf("with the breach: %q, want one complaint", got)
			}
		})
	}
}

func report(t *testing.T, complaints []string) {
	t.Helper()
	for _, c := range complaints {
		t.Error(c)
	}
}

func badArrows(files []source) (bad []string) {
	missing := map[string]bool{}
	for _, f := range files {
		allowed, known := lookup(f.dir)
		if !known && !missing[f.dir] {
			missing[f.dir] = true
			bad = append(bad, fmt.Sprintf("%s has no line in the table arrows of arch_test.go; "+
				"add one that lists the packages of this module it may import", f.dir))
		}
		if !known || f.isTest() {
			continue
		}
		for _, imp := range f.imports {
			target, ours := inModule(imp)
			if ours && !contains(allowed, target) {
				bad = append(bad, fmt.Sprintf("%s/%s imports %s, which the table arrows of arch_test.go does not allow",
					f.dir, f.name, target))
			}
		}
	}
	return bad
}

// lookup returns the line of arrows that is for dir.
func lookup(dir string) (allowed []string, known bool) {
	for pattern, allowed := range arrows {
		if matches(pattern, dir) {
			return allowed, true
		}
	}
	return nil, false
}

func badOwners(files []source) (bad []string) {
	for _, f := range files {
		for _, imp := range f.imports {
			for dependency, may := range owners {
				if below(dependency, imp) && !contains(may, f.dir) {
					bad = append(bad, fmt.Sprintf("%s/%s imports %s, which is for %s only",
						f.dir, f.name, imp, strings.Join(may, ", ")))
				}
			}
		}
	}
	return bad
}

func badRoot(files []source) (bad []string) {
	for _, f := range files {
		if f.dir != "." || f.isTest() {
			continue
		}
		for _, imp := range f.imports {
			if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") {
				bad = append(bad, fmt.Sprintf("%s imports %s; the root package is for the standard library only", f.name, imp))
			}
		}
	}
	return bad
}

func badCommands(files []source) (bad []string) {
	for _, f := range files {
		switch {
		case path.Dir(f.dir) != "cmd" || f.isTest():
		case f.name != "main.go":
			bad = append(bad, fmt.Sprintf("%s/%s: a command is its main.go; write the rest in a package", f.dir, f.name))
		case f.lines > maxMain:
			bad = append(bad, fmt.Sprintf("%s/%s has %d lines, at most %d are allowed; write the rest in a package",
				f.dir, f.name, f.lines, maxMain))
		}
	}
	return bad
}

func badComments(files []source) (bad []string) {
	has := map[string]bool{}
	for _, f := range files {
		if !f.isTest() {
			has[f.dir] = has[f.dir] || f.doc || f.generated
		}
	}
	for dir, ok := range has {
		if !ok {
			bad = append(bad, dir+" has no package comment")
		}
	}
	return bad
}

// inModule returns the package of ours that an import path names.
func inModule(imp string) (dir string, ours bool) {
	if imp == module {
		return ".", true
	}
	return strings.CutPrefix(imp, module+"/")
}

func contains(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, dir) })
}

func matches(pattern, dir string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return below(prefix, dir)
	}
	return pattern == dir
}

// below reports whether name is prefix or something below it.
func below(prefix, name string) bool {
	return name == prefix || strings.HasPrefix(name, prefix+"/")
}

// sources returns the Go files of the module, those in testdata and in
// modules of their own left out.
func sources(t *testing.T) []source {
	t.Helper()
	var files []source
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && foreign(name):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		f, err := parse(name)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d Go files, want the module", len(files))
	}
	return files
}

func foreign(dir string) bool {
	base := filepath.Base(dir)
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil || base == "testdata" || base[0] == '.' || base[0] == '_'
}

func parse(name string) (source, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return source{}, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return source{}, err
	}
	f := source{
		dir:       path.Dir(filepath.ToSlash(name)),
		name:      filepath.Base(name),
		lines:     bytes.Count(text, []byte("\n")),
		doc:       file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != "",
		generated: ast.IsGenerated(file),
	}
	for _, spec := range file.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, err
		}
		f.imports = append(f.imports, imp)
	}
	return f, nil
}
