package sandpit_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sandpit-dev/sandpit"

// direction says which packages of this module the packages of a group may import, tests
// left aside, and why. A pattern that ends in "/..." means a package and everything below.
// "*" means one folder of any name; if from has it, it means the same name in may.
// The direction with the most specific pattern holds for a package; one that has none
// does not pass.
type direction struct {
	from  string
	may   []string
	alone bool // the packages of the group may not import each other
	why   string
}

// anywhere are the packages that every other one may import: the vocabulary, and what
// bounds texts and bytes. They may import each other and nothing else.
var anywhere = []string{".", "internal/core/fairshare", "internal/core/memory", "internal/core/pattern", "internal/core/textlen"}

// directions is the whole order of the tree.
var directions = []direction{
	{from: ".", alone: true, why: "it is the vocabulary: what it imports, every package imports"},
	{from: "internal/core/fairshare", alone: true, why: "see anywhere"},
	{from: "internal/core/memory", alone: true, why: "see anywhere"},
	{from: "internal/core/pattern", alone: true, why: "see anywhere"},
	{from: "internal/core/textlen", alone: true, why: "see anywhere"},

	{from: "internal/files/...", why: "files and disk, without knowledge of sandboxes: the guest and the server share them"},
	{
		from: "internal/inside/...", may: []string{"internal/files/...", "internal/reach/gen/...", "internal/reach/stdioconn"},
		why: "it runs in the sandbox: of the server it knows the protocol only",
	},
	{from: "internal/reach/...", may: []string{"internal/files/..."}, why: "it serves providers, tools and clients, which have no server"},
	{from: "internal/reach/gen/...", why: "generated code"},
	{from: "internal/build/...", may: []string{"internal/files/...", "internal/reach/..."}, why: "the command line builds images without a server"},
	{from: "internal/core/...", may: []string{"internal/files/..."}, why: "it reaches providers and front ends through interfaces of its own"},
	{from: "internal/agents/...", may: []string{"internal/reach/..."}, why: "tools work through a Guest, with and without a server"},
	{
		from: "internal/front/...", alone: true, why: "front ends are independent of each other; the edge and the wire types are common",
		may: []string{"api", "internal/front/api", "internal/front/wire", "internal/core/...", "internal/agents/...", "internal/reach/...", "internal/build/image", "internal/files/..."},
	},
	{from: "internal/front/wire", alone: true, may: []string{"api"}, why: "server and client share it"},

	{
		from: "internal/app/daemon/...", why: "it alone connects the parts",
		may: []string{"api", "internal/app/...", "internal/front/...", "internal/core/...", "internal/build/...", "internal/reach/...", "internal/files/...", "internal/inside/guestbin", "provider/*/register"},
	},
	{
		from: "internal/app/cli/...", why: "it asks a server through the client, and this machine through daemon and build",
		may: []string{"agent/...", "api", "client", "internal/app/config", "internal/app/daemon", "internal/app/registration", "internal/agents/...", "internal/build/...", "internal/reach/workspace", "internal/files/..."},
	},
	{from: "internal/app/config", alone: true, why: "every program reads the same settings"},
	{from: "internal/app/registration", may: []string{"internal/app/config", "internal/build/image"}, why: "providers describe themselves with it"},
	{from: "internal/app/telemetry", alone: true, may: []string{"internal/app/config", "internal/core/..."}, why: "it observes; no part knows it"},

	{from: "agent", alone: true, may: []string{"agent/model", "internal/agents/...", "internal/core/textlen"}, why: "users import it: tools through a Guest and a model through an interface, without a server"},
	{from: "agent/model/...", why: "users import it: models of vendors, without sandboxes and settings"},
	{from: "api", alone: true, why: "users import it: the documents of sandpit's own API and nothing else"},
	{from: "client", alone: true, may: []string{"api", "internal/front/wire", "internal/reach/...", "internal/app/config"}, why: "users import it: it has no part of a server"},
	{
		from: "provider/*/...", why: "it creates sandboxes and reaches into them; it knows neither server nor other providers",
		may: []string{"internal/inside/guest", "internal/inside/guestbin", "internal/reach/...", "internal/files/...", "internal/build/image"},
	},
	{
		from: "provider/*/register", why: "it tells the programs how to open its provider",
		may: []string{"provider/*/...", "internal/app/config", "internal/app/registration", "internal/inside/guestbin", "internal/files/...", "internal/build/image"},
	},
	{from: "provider/providertest/...", why: "a provider outside of this module can run it"},
	{from: "cmd/sandpit", may: []string{"internal/app/cli", "internal/inside/guest", "provider/gvisor"}, why: "one program has all roles"},
	{from: "cmd/sandpit-guest", may: []string{"internal/inside/guest"}, why: "it is the guest and nothing else"},

	{
		from: "internal/testing/...", why: "tests only",
		may: []string{"internal/app/config", "internal/build/image", "internal/core/...", "internal/front/api", "internal/reach/gen/...", "provider/docker", "provider/fake", "provider/gvisor"},
	},
	{from: "conformance/...", alone: true, why: "tests only"},
	{from: "deploy", alone: true, why: "tests only"},
	{
		from: "bench", why: "it measures each part",
		may: []string{"agent", "agent/model", "api", "client", "internal/agents/tool", "internal/build/image", "internal/core/...", "internal/inside/guestbin", "internal/reach/workspace", "internal/testing/testoptions", "provider/docker", "provider/gvisor"},
	},
}

// exceptions are single imports against the directions.
var exceptions = []struct{ from, imports, why string }{
	{"internal/reach/workspace", "internal/inside/applet", "it starts applets and reads their answers"},
	{"internal/reach/workspace", "internal/inside/fileserver", "it starts the file server and names its command"},
	{"internal/reach/ownguest", "internal/inside/guest", "it starts a guest in a foreign computer"},
	{"internal/reach/ownguest", "internal/inside/guestbin", "it copies the guest into a foreign computer"},
	{"internal/agents/mcpclient", "internal/inside/applet", "it reaches URLs through the applet dial"},
	{"internal/agents/tool", "internal/inside/applet", "tools call applets"},
	{"internal/agents/tool", "internal/inside/interpreter", "tools speak to the interpreter"},
	{"client", "internal/inside/interpreter", "Execute speaks to the interpreter"},
	{"internal/front/api/daytona/toolbox", "internal/inside/interpreter", "interpreter contexts and charts speak to the interpreter"},
	{"internal/front/api/daytona/toolbox", "internal/inside/applet", "calls on files search with an applet"},
	{"internal/app/config", "internal/reach/network/policy", "it checks network rules when it loads them"},
	{"internal/app/cli", "internal/core/commandscreen", "run screens commands without a server"},
	{"internal/app/cli", "internal/core/usage", "run warns of limits without a server"},
}

// importers says which packages may import one that others would otherwise lean on.
var importers = map[string][]string{
	"internal/app/cli":       {"cmd/sandpit"},
	"internal/app/daemon":    {"internal/app/cli/...", "internal/app/daemon/..."},
	"internal/app/telemetry": {"internal/app/daemon/..."},
	"internal/core/manager":  {"bench", "internal/app/...", "internal/core/manager/...", "internal/front/...", "internal/testing/..."},
	"internal/core/queue":    {"internal/app/...", "internal/core/manager/...", "internal/core/queue/...", "internal/core/store", "internal/front/api/native"},
	"internal/inside/guest":  {"cmd/...", "internal/reach/ownguest", "provider/..."},
	"provider/docker":        {"bench", "internal/testing/testoptions", "provider/docker/..."},
	"provider/gvisor":        {"bench", "cmd/sandpit", "internal/testing/...", "provider/gvisor/..."},
}

// maxGroups is how many folders internal/ may have.
const maxGroups = 9

// owners says which packages may import a dependency that is heavy, or that
// would otherwise spread; tests included.
var owners = map[string][]string{
	"connectrpc.com":                         {"internal/front/api/...", "internal/reach/envd", "internal/reach/gen/...", "internal/inside/guest", "provider/fake"},
	"github.com/BurntSushi/toml":             {"agent/model/script", "conformance/models", "internal/app/config", "internal/build/template"},
	"github.com/ProtonMail/go-crypto":        {"internal/build/debian"},
	"github.com/docker/cli":                  {"internal/build/image"},
	"github.com/google/go-containerregistry": {"internal/build/image", "internal/testing/testdocker"},
	"github.com/minio":                       {"internal/files/archive", "internal/front/api/daytona"},
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
	"gvisor.dev/gvisor":                      {"internal/reach/network", "provider/gvisor/..."},
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

func TestImports(t *testing.T)          { t.Parallel(); report(t, badImports(sources(t))) }
func TestGroups(t *testing.T)           { t.Parallel(); report(t, badGroups(sources(t))) }
func TestDependencyOwners(t *testing.T) { t.Parallel(); report(t, badOwners(sources(t))) }
func TestRootImports(t *testing.T)      { t.Parallel(); report(t, badRoot(sources(t))) }
func TestCommandsAreThin(t *testing.T)  { t.Parallel(); report(t, badCommands(sources(t))) }
func TestPackageComments(t *testing.T)  { t.Parallel(); report(t, badComments(sources(t))) }

// TestExceptions fails for an exception that no package needs any more.
func TestExceptions(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, f := range sources(t) {
		for _, imp := range f.imports {
			if target, ours := inModule(imp); ours && !f.isTest() {
				used[f.dir+" "+target] = true
			}
		}
	}
	for _, e := range exceptions {
		if !used[e.from+" "+e.imports] {
			t.Errorf("%s does not import %s any more; remove the exception", e.from, e.imports)
		}
	}
}

// TestRulesCatch plants one breach of each rule.
func TestRulesCatch(t *testing.T) {
	t.Parallel()
	good := []source{{dir: "internal/app/daemon", name: "a.go", imports: []string{"os", module + "/internal/app/config"}, doc: true}}
	for _, group := range []string{"agents", "build", "core", "files", "front", "inside", "reach", "testing"} {
		good = append(good, source{dir: "internal/" + group, name: "a.go", doc: true})
	}
	for name, tc := range map[string]struct {
		rule   func([]source) []string
		breach source
	}{
		"upward import":      {badImports, source{dir: "internal/core/store", imports: []string{module + "/internal/front/api"}}},
		"sibling":            {badImports, source{dir: "internal/front/sshd", imports: []string{module + "/internal/front/preview"}}},
		"register of other":  {badImports, source{dir: "provider/docker/register", imports: []string{module + "/provider/gvisor/register"}}},
		"provider and app":   {badImports, source{dir: "provider/docker", imports: []string{module + "/internal/app/config"}}},
		"other provider":     {badImports, source{dir: "provider/docker", imports: []string{module + "/provider/fake"}}},
		"against the guest":  {badImports, source{dir: "internal/inside/watch", imports: []string{module + "/internal/core/clock"}}},
		"importer":           {badImports, source{dir: "internal/core/token", imports: []string{module + "/internal/core/manager"}}},
		"exception of other": {badImports, source{dir: "internal/agents/browser", imports: []string{module + "/internal/inside/applet"}}},
		"vocabulary":         {badImports, source{dir: ".", imports: []string{module + "/internal/core/textlen"}}},
		"new group":          {badImports, source{dir: "internal/new"}},
		"below a package":    {badImports, source{dir: "internal/app/config/new"}},
		"many groups":        {badGroups, source{dir: "internal/tenth"}},
		"no owner":           {badOwners, source{dir: "internal/app/daemon", imports: []string{"gvisor.dev/gvisor/runsc/cli"}}},
		"owner's child":      {badOwners, source{dir: "internal/configs", imports: []string{"github.com/BurntSushi/toml"}}},
		"root":               {badRoot, source{dir: ".", imports: []string{"golang.org/x/sys/unix"}}},
		"long main":          {badCommands, source{dir: "cmd/sandpit", name: "main.go", lines: maxMain + 1}},
		"more than main":     {badCommands, source{dir: "cmd/sandpit", name: "more.go"}},
		"no comment":         {badComments, source{dir: "internal/app/cli"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.rule(good); len(got) != 0 {
				t.Errorf("the good files: %q, want nothing", got)
			}
			if got := tc.rule(append(slices.Clip(good), tc.breach)); len(got) != 1 {
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

func badImports(files []source) (bad []string) {
	missing := map[string]bool{}
	for _, f := range files {
		d, known := directionOf(f.dir)
		if !known && !missing[f.dir] {
			missing[f.dir] = true
			bad = append(bad, f.dir+" has no direction in arch_test.go: put it into a group of internal/")
		}
		if !known || f.isTest() {
			continue
		}
		for _, imp := range f.imports {
			target, ours := inModule(imp)
			if !ours {
				continue
			}
			if !d.permits(f.dir, target) {
				bad = append(bad, fmt.Sprintf("%s/%s imports %s, which the direction of %s does not allow (%s)", f.dir, f.name, target, d.from, d.why))
			} else if may := importers[target]; may != nil && !contains(may, f.dir) {
				bad = append(bad, fmt.Sprintf("%s/%s imports %s, which is for %s only", f.dir, f.name, target, strings.Join(may, ", ")))
			}
		}
	}
	return bad
}

// directionOf returns the direction with the most specific pattern for dir.
func directionOf(dir string) (best direction, known bool) {
	for _, d := range directions {
		if matches(d.from, dir) && (!known || len(d.from) > len(best.from)) {
			best, known = d, true
		}
	}
	return best, known
}

// permits reports whether the package in dir, for which d holds, may import target.
func (d direction) permits(dir, target string) bool {
	for _, e := range exceptions {
		if e.from == dir && e.imports == target {
			return true
		}
	}
	return dir != "." && slices.Contains(anywhere, target) || contains(d.within(dir), target)
}

// within returns the patterns of what the package in dir may import, its own group included.
func (d direction) within(dir string) []string {
	patterns := slices.Clone(d.may)
	if !d.alone {
		patterns = append(patterns, d.from)
	}
	if before, _, star := strings.Cut(d.from, "*"); star {
		name, _, _ := strings.Cut(strings.TrimPrefix(dir, before), "/")
		for i, p := range patterns {
			patterns[i] = strings.Replace(p, "*", name, 1)
		}
	}
	return patterns
}

func badGroups(files []source) (bad []string) {
	groups := map[string]bool{}
	for _, f := range files {
		if rest, ok := strings.CutPrefix(f.dir, "internal/"); ok {
			group, _, _ := strings.Cut(rest, "/")
			groups[group] = true
		}
	}
	if len(groups) > maxGroups {
		bad = append(bad, fmt.Sprintf("internal/ has %d folders, want at most %d: %q", len(groups), maxGroups, slices.Sorted(maps.Keys(groups))))
	}
	return bad
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
	if before, after, star := strings.Cut(pattern, "*"); star {
		name, _, _ := strings.Cut(strings.TrimPrefix(dir, before), "/")
		pattern = before + name + after
	}
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
