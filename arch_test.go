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
	".":                              {},
	"bench":                          {".", "client", "internal/inside/guestbin", "internal/build/image", "internal/core/manager", "internal/core/store", "internal/agents/tool", "internal/reach/workspace", "provider/docker", "provider/gvisor"},
	"client":                         {".", "internal/app/config", "internal/reach/envd", "internal/front/wire", "internal/reach/workspace"},
	"conformance/attacks":            {},
	"conformance/attacks/owners":     {},
	"conformance/chaos":              {},
	"conformance/compare":            {},
	"conformance/documents":          {},
	"conformance/e2b":                {},
	"conformance/mcp":                {},
	"conformance/network":            {},
	"conformance/outage":             {},
	"conformance/survive":            {},
	"cmd/sandpit":                    {"internal/app/cli", "internal/inside/guest", "provider/gvisor"},
	"cmd/sandpit-guest":              {"internal/inside/guest"},
	"deploy":                         {},
	"provider/docker":                {".", "internal/reach/envd", "internal/inside/guest", "internal/inside/guestbin", "internal/files/hostpath", "internal/build/image", "internal/reach/liveness", "internal/reach/stdioconn"},
	"provider/fake":                  {".", "internal/reach/envd", "internal/inside/guest", "internal/reach/liveness"},
	"provider/gvisor":                {".", "internal/files/archive", "internal/files/beneath", "internal/reach/envd", "internal/inside/guest", "internal/inside/guestbin", "internal/build/image", "internal/reach/liveness", "internal/reach/network", "internal/reach/network/dialer", "internal/reach/network/policy", "internal/reach/network/route", "provider/gvisor/internal/..."},
	"provider/providertest":          {"."},
	"internal/front/api":             {".", "internal/core/clock", "internal/core/revocation", "internal/core/manager", "internal/core/memory", "internal/core/fairshare", "internal/core/store", "internal/front/wire"},
	"internal/front/api/aio":         {".", "internal/front/api", "internal/core/manager", "internal/core/memory", "internal/agents/tool"},
	"internal/front/api/data":        {".", "internal/front/api", "internal/core/manager", "internal/core/memory", "internal/reach/shell", "internal/front/wire", "internal/reach/workspace"},
	"internal/front/api/e2b":         {".", "internal/front/api", "internal/files/diskspace", "internal/build/image", "internal/core/manager", "internal/core/memory", "internal/core/fairshare", "internal/core/store"},
	"internal/front/api/mcp":         {".", "internal/front/api", "internal/core/manager", "internal/agents/mcp", "internal/core/memory", "internal/agents/tool", "internal/front/wire"},
	"internal/front/api/native":      {".", "internal/front/api", "internal/files/hostpath", "internal/build/image", "internal/core/manager", "internal/core/memory", "internal/core/queue", "internal/core/sshkey", "internal/core/store", "internal/front/wire", "internal/reach/workspace"},
	"internal/inside/applet":         {".", "internal/files/beneath"},
	"internal/files/archive":         {"."},
	"internal/core/audit":            {".", "internal/core/clock", "internal/core/store"},
	"internal/files/beneath":         {},
	"internal/agents/browser":        {".", "internal/core/memory"},
	"internal/app/cli":               {".", "client", "internal/app/config", "internal/app/daemon", "internal/files/hostpath", "internal/agents/mcp", "internal/agents/mcpclient", "internal/core/commandscreen", "internal/agents/tool", "internal/core/usage", "internal/reach/workspace"},
	"internal/core/clock":            {},
	"internal/app/config":            {".", "internal/reach/network/policy"},
	"internal/app/daemon":            {".", "internal/front/api/...", "internal/files/archive", "internal/core/audit", "internal/files/beneath", "internal/core/clock", "internal/app/config", "internal/build/debian", "internal/files/diskspace", "internal/front/preview", "internal/inside/guestbin", "internal/files/hostpath", "internal/build/image", "internal/core/manager", "internal/core/memory", "internal/reach/network/policy", "internal/reach/network/route", "internal/build/npm", "internal/front/publish", "internal/core/queue", "internal/core/commandscreen", "internal/core/fairshare", "internal/front/sshd", "internal/core/sshkey", "internal/core/store", "internal/app/telemetry", "internal/files/tempdir", "internal/build/template", "internal/front/tlscert", "internal/core/token", "internal/files/tree", "internal/core/usage", "internal/front/wire", "provider/docker", "provider/gvisor"},
	"internal/build/debian":          {".", "internal/build/mirror"},
	"internal/files/diskspace":       {"."},
	"internal/reach/envd":            {".", "internal/reach/gen/...", "internal/reach/liveness", "internal/core/memory"},
	"internal/testing/envdtest":      {"internal/reach/gen/..."},
	"internal/front/preview":         {".", "internal/front/api", "internal/core/clock", "internal/core/manager", "internal/core/store", "internal/core/token", "internal/front/wire"},
	"internal/reach/gen/...":         {"internal/reach/gen/..."},
	"internal/inside/guest":          {".", "internal/inside/applet", "internal/files/beneath", "internal/reach/gen/...", "internal/inside/interpreter", "internal/inside/commandlog", "internal/inside/fileserver", "internal/reach/stdioconn", "internal/files/tree", "internal/inside/watch"},
	"internal/inside/guestbin":       {},
	"internal/inside/guestbin/build": {"internal/inside/guestbin"},
	"internal/files/hostpath":        {"."},
	"internal/build/image":           {".", "internal/files/diskspace", "internal/reach/network/policy", "internal/reach/network/route", "internal/core/fairshare"},
	"internal/inside/interpreter":    {".", "internal/core/memory"},
	"internal/inside/commandlog":     {},
	"internal/files/layer":           {".", "internal/core/memory"},
	"internal/core/revocation":       {"internal/core/clock"},
	"internal/reach/liveness":        {"."},
	"internal/core/manager":          {".", "internal/core/clock", "internal/files/diskspace", "internal/files/layer", "internal/core/queue", "internal/core/fairshare", "internal/core/store", "internal/files/tempdir", "internal/core/usage"},
	"internal/agents/mcp":            {".", "internal/agents/mcpclient", "internal/core/memory", "internal/agents/tool"},
	"internal/agents/mcpclient":      {".", "internal/inside/applet", "internal/core/memory"},
	"internal/core/memory":           {".", "internal/core/fairshare"},
	"internal/build/mirror":          {"."},
	"internal/reach/network":         {".", "internal/reach/network/policy"},
	"internal/reach/network/dialer":  {".", "internal/reach/network/route"},
	"internal/reach/network/policy":  {"."},
	"internal/reach/network/route":   {},
	"internal/build/npm":             {".", "internal/build/mirror"},
	"internal/front/publish":         {"."},
	"internal/core/queue":            {".", "internal/core/clock"},
	"internal/core/queue/queuetest":  {".", "internal/core/queue"},
	"internal/core/commandscreen":    {"."},
	"internal/core/fairshare":        {"."},
	"internal/reach/shell":           {".", "internal/core/memory"},
	"internal/inside/fileserver":     {".", "internal/files/beneath"},
	"internal/front/sshd":            {".", "internal/front/api", "internal/core/manager", "internal/core/memory", "internal/core/fairshare", "internal/core/sshkey", "internal/core/store"},
	"internal/core/sshkey":           {".", "internal/core/clock", "internal/core/revocation", "internal/core/store"},
	"internal/core/store":            {".", "internal/core/memory", "internal/core/queue"},
	"internal/app/telemetry":         {".", "internal/app/config", "internal/core/manager", "internal/core/queue", "internal/core/fairshare"},
	"internal/files/tempdir":         {".", "internal/files/beneath"},
	"internal/build/template":        {".", "internal/build/debian", "internal/build/image", "internal/build/npm", "internal/reach/workspace"},
	"internal/testing/testdocker":    {"internal/testing/testengine"},
	"internal/testing/testengine":    {"."},
	"internal/testing/testgvisor":    {".", "internal/build/image", "internal/testing/testengine", "provider/gvisor"},
	"internal/testing/testserver":    {"internal/testing/testengine"},
	"internal/testing/testtools":     {".", "internal/testing/testengine"},
	"internal/testing/testuser":      {},
	"internal/reach/stdioconn":       {},
	"internal/front/tlscert":         {"."},
	"internal/core/token":            {".", "internal/core/clock", "internal/core/revocation", "internal/core/store"},
	"internal/agents/tool":           {".", "internal/inside/applet", "internal/agents/browser", "internal/inside/interpreter", "internal/agents/mcpclient", "internal/core/memory", "internal/reach/shell", "internal/reach/workspace"},
	"internal/files/tree":            {".", "internal/files/beneath"},
	"internal/core/usage":            {"."},
	"internal/inside/watch":          {"."},
	"internal/front/wire":            {"."},
	"internal/reach/workspace":       {".", "internal/inside/applet", "internal/files/beneath", "internal/core/memory", "internal/inside/fileserver", "internal/files/tree"},

	"provider/gvisor/internal/cgroup":     {"."},
	"provider/gvisor/internal/confine":    {},
	"provider/gvisor/internal/ocilayer":   {"."},
	"provider/gvisor/internal/savedstate": {"."},
}

// owners says which packages may import a dependency that is heavy, or that
// would otherwise spread; tests included.
var owners = map[string][]string{
	"connectrpc.com":                         {"internal/front/api/...", "internal/reach/envd", "internal/reach/gen/...", "internal/inside/guest", "provider/fake"},
	"github.com/BurntSushi/toml":             {"internal/app/config", "internal/build/template"},
	"github.com/ProtonMail/go-crypto":        {"internal/build/debian"},
	"github.com/docker/cli":                  {"internal/build/image"},
	"github.com/google/go-containerregistry": {"internal/build/image", "internal/testing/testdocker"},
	"github.com/minio":                       {"internal/files/archive"},
	"github.com/moby":                        {"internal/build/template", "internal/testing/testdocker", "provider/docker"},
	"github.com/google/jsonschema-go":        {"internal/agents/tool"},
	"github.com/lmittmann/tint":              {"internal/app/telemetry"},
	"github.com/ulikunitz/xz":                {"internal/build/debian"},
	"github.com/vishvananda/netlink":         {"conformance/attacks/owners", "conformance/network"},
	"github.com/modelcontextprotocol/go-sdk": {"bench", "conformance/documents", "conformance/mcp", "internal/agents/mcp", "internal/agents/mcpclient"},
	"github.com/pkg/sftp":                    {"internal/app/daemon", "internal/front/sshd"},
	"github.com/prometheus":                  {"deploy", "internal/app/telemetry"},
	"go.opentelemetry.io":                    {"internal/app/telemetry"},
	"github.com/redis/go-redis":              {"internal/core/queue"},
	"github.com/spf13/cobra":                 {"internal/app/cli"},
	"go.yaml.in/yaml":                        {"deploy"},
	"golang.org/x/crypto/acme":               {"internal/front/tlscert"},
	"golang.org/x/crypto/ssh":                {"conformance/attacks/owners", "internal/app/daemon", "internal/front/sshd", "internal/core/sshkey"},
	"gvisor.dev/gvisor":                      {"internal/reach/network", "provider/gvisor", "provider/gvisor/internal/ocilayer"},
	"k8s.io":                                 {"provider/kubernetes"},
	"modernc.org/sqlite":                     {"internal/core/store"},
	"mvdan.cc/sh":                            {"internal/core/commandscreen"},
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
	good := source{dir: "internal/app/daemon", name: "a.go", imports: []string{"os", module + "/internal/app/config"}, doc: true}
	for name, tc := range map[string]struct {
		rule   func([]source) []string
		breach source
	}{
		"upward import":   {badArrows, source{dir: "internal/app/config", imports: []string{module + "/internal/app/daemon"}}},
		"new package":     {badArrows, source{dir: "internal/new"}},
		"below a package": {badArrows, source{dir: "internal/app/config/new"}},
		"no owner":        {badOwners, source{dir: "internal/app/daemon", imports: []string{"gvisor.dev/gvisor/runsc/cli"}}},
		"owner's child":   {badOwners, source{dir: "internal/configs", imports: []string{"github.com/BurntSushi/toml"}}},
		"root":            {badRoot, source{dir: ".", imports: []string{"golang.org/x/sys/unix"}}},
		"long main":       {badCommands, source{dir: "cmd/sandpit", name: "main.go", lines: maxMain + 1}},
		"more than main":  {badCommands, source{dir: "cmd/sandpit", name: "more.go"}},
		"no comment":      {badComments, source{dir: "internal/app/cli"}},
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
