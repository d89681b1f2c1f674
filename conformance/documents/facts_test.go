package documents_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// fact is a figure of a page. The page has text with one of values in place of each {}.
type fact struct {
	page, text string
	values     []string
}

// TestFacts compares the figures of pages with the program: the settings' defaults, and
// constants by their names. A change of one requires a change of the page.
func TestFacts(t *testing.T) {
	t.Parallel()
	pages := make(map[string]string)
	checked := make(map[string]int)
	for _, f := range slices.Concat(settingFacts(), constantFacts(t)) {
		text, ok := pages[f.page]
		if !ok {
			data, err := os.ReadFile(filepath.Join("../..", f.page))
			if err != nil {
				t.Fatal(err)
			}
			text = oneLine(string(data))
			pages[f.page] = text
		}
		if !strings.Contains(f.text, "{}") {
			t.Errorf("%s: %q has no figure", f.page, f.text)
		}
		found := false
		for _, v := range f.values {
			found = found || strings.Contains(text, strings.ReplaceAll(f.text, "{}", v))
		}
		if !found {
			t.Errorf("%s does not say %q with one of %q", f.page, f.text, f.values)
		}
		checked[f.page]++
	}
	for _, page := range []string{"README.md", "docs/api.md", "docs/terminals.md", "docs/aio.md", "docs/mcp.md", "docs/network.md", "docs/interpreter.md", "docs/templates.md"} {
		if checked[page] == 0 {
			t.Errorf("no figure of %s is checked", page)
		}
	}
}

// settingFacts are the figures that are defaults of settings.
func settingFacts() []fact {
	c := config.Default()
	return []fact{
		{"README.md", "at most {} (`--disk`)", size(c.Sandbox.DiskLimit)},
		{"README.md", "| {}, one CPU: `--memory`", size(c.Sandbox.MemoryLimit)},
		{"README.md", "| processes | {}: `--pids`", count(c.Sandbox.PIDsLimit)},
		{"README.md", "| time limit | {}, none with `-t`", span(c.Sandbox.Timeout)},
		{"docs/api.md", "`http://{}`", []string{c.Server.Listen}},
		{"docs/api.md", "| body of these calls | {} (`server.max_body`)", size(c.Server.MaxBody)},
		{"docs/api.md", "| connections | {} in total", count(c.Server.MaxConnections)},
		{"docs/api.md", "| requests of one key | {} a second", count(c.Server.Rate)},
		{"docs/api.md", "a second, {} at once", count(c.Server.Burst)},
		{"docs/mcp.md", "`server.mcp_idle_timeout` ({})", span(c.Server.MCPIdleTimeout)},
		{"docs/mcp.md", "`server.mcp_max_sessions` ({})", count(c.Server.MCPSessions)},
		{"docs/templates.md", "`manager.max_builds` ({})", count(c.Manager.MaxBuilds)},
		{"docs/templates.md", "`manager.max_upload_bytes` ({})", size(c.Manager.MaxUploadBytes)},
		{"docs/templates.md", "Each owner may have {} templates", count(c.Manager.MaxTemplates)},
		{"docs/templates.md", "templates, and {} of builds", size(c.Manager.MaxTemplateBytes)},
	}
}

// constantFacts are the figures that are constants of packages.
func constantFacts(t *testing.T) []fact {
	t.Helper()
	s := newScopes(t)
	counted := func(dir, name string) []string { return count(s.number(dir, name)) }
	sized := func(dir, name string) []string { return size(s.number(dir, name)) }
	timed := func(dir, name string) []string { return span(time.Duration(s.number(dir, name))) }
	return []fact{
		{"docs/api.md", "at most {} tokens of each kind", counted("internal/core/store", "MaxSandboxTokens")},
		{"docs/api.md", "at most {} preview tokens together", counted("internal/core/store", "MaxOwnerTokens")},
		{"docs/api.md", "up to {} times and for a minute", counted("client", "maxBusyTries")},
		{"docs/api.md", "10 times and for {}, unless", timed("client", "maxBusyWait")},
		{"docs/api.md", "and may take up to {}.", timed("client", "deletionTimeout")},
		{"docs/api.md", "After {} without an event", timed("internal/front/api", "HeartbeatEvery")},
		{"docs/api.md", "may listen to {} streams", counted("internal/front/api/native", "maxStreams")},
		{"docs/api.md", "| head of a request | {}, within", sized("internal/front/api", "defaultMaxHeader")},
		{"docs/api.md", "64 KiB, within {} |", timed("internal/front/api", "headerTimeout")},
		{"docs/api.md", "(`server.max_body`), within {} |", timed("internal/front/api/native", "bodyTimeout")},
		{"docs/api.md", "one for each {} of the server's memory", sized("internal/app/daemon", "requestMemory")},
		{"docs/api.md", "a quarter of the server's memory, up to {};", sized("internal/core/memory", "maxDefault")},
		{"docs/api.md", "cannot send the next {} for a minute", sized("internal/front/api", "guardedPiece")},
		{"docs/api.md", "cannot send the next 64 KiB for {} |", timed("internal/front/api", "stallTimeout")},
		{"docs/api.md", "| {} at once, then 10 a minute", counted("internal/front/api", "defaultFailedBurst")},
		{"docs/api.md", "at once, then {} a minute", counted("internal/front/api", "defaultFailedRate")},

		{"docs/terminals.md", "any number of lines, up to {}, no NUL byte", sized("internal/reach/shell", "maxCommand")},
		{"docs/terminals.md", "after which the command is stopped | the session's: {} |", timed("internal/reach/shell", "defaultTimeout")},
		{"docs/terminals.md", "| the command's input, up to {} |", sized("internal/reach/shell", "maxStdin")},
		{"docs/terminals.md", "of each output are kept, up to {} |", sized("internal/reach/shell", "maxOutputLimit")},
		{"docs/terminals.md", "MiB | the session's: {} |", sized("internal/reach/shell", "defaultMaxOutput")},
		{"docs/terminals.md", "ignored the interrupt for `grace` ({})", timed("internal/reach/shell", "defaultGrace")},
		{"docs/terminals.md", "of the next result, up to {}.", sized("internal/reach/shell", "maxLate")},
		{"docs/terminals.md", "keeps up to {} jobs (`max_jobs`)", counted("internal/reach/shell", "defaultMaxJobs")},
		{"docs/terminals.md", "has up to {} sessions", counted("internal/reach/shell", "defaultSessions")},
		{"docs/terminals.md", "is closed after {} without a command or job", timed("internal/reach/shell", "defaultIdle")},

		{"docs/aio.md", "files, up to {} in one piece", sized("internal/front/api/aio", "maxFile")},
		{"docs/aio.md", "The session ends {} after the last request.", timed("internal/front/api/aio", "idleTimeout")},

		{"docs/mcp.md", "keeps the last {} and 64 responses", sized("internal/agents/mcp", "maxReplay")},
		{"docs/mcp.md", "keeps the last 2 MiB and {} responses", counted("internal/agents/mcp", "maxReplayStreams")},
		{"docs/mcp.md", "at most {} bytes of a result", counted("internal/agents/tool", "maxText")},
		{"docs/mcp.md", "can read any file of up to {} in this way.", sized("internal/agents/mcp", "maxResource")},
		{"docs/mcp.md", "(at most {}, of 20 MiB together)", counted("internal/agents/tool", "maxImageCount")},
		{"docs/mcp.md", "(at most 8, of {} together)", sized("internal/agents/tool", "maxImages")},
		{"docs/mcp.md", "otherwise every {}.", timed("internal/agents/mcp", "progressInterval")},
		{"docs/mcp.md", "must be ready within {}.", timed("internal/agents/mcpclient", "startTimeout")},
		{"docs/mcp.md", "a message has at most {},", sized("internal/agents/mcpclient", "maxMessage")},
		{"docs/mcp.md", "for one request {}, a list", sized("internal/agents/mcpclient", "maxReceived")},
		{"docs/mcp.md", "a list {} tools", counted("internal/agents/mcpclient", "mostTools")},
		{"docs/mcp.md", "have at most {} and 8000 pixels", sized("internal/agents/mcpclient", "maxImage")},
		{"docs/mcp.md", "5 MiB and {} pixels on a side", counted("internal/agents/mcpclient", "maxSide")},
		{"docs/mcp.md", "or {} after the last call", timed("internal/agents/tool", "claimLease")},
		{"docs/mcp.md", "does not answer for {},", timed("internal/agents/browser", "pageTimeout")},
		{"docs/mcp.md", "At most {} pages are open", counted("internal/agents/browser", "maxTabs")},
		{"docs/mcp.md", "at most {} pixels on a side, 16 million", counted("internal/agents/browser", "maxSide")},

		{"docs/network.md", "returns the last {} different decisions", counted("internal/reach/network", "maxDecisions")},
		{"docs/network.md", "may have {} connections at a time", counted("internal/reach/network", "maxConnections")},
		{"docs/network.md", "at most {} of them over UDP", counted("internal/reach/network", "maxDatagrams")},
		{"docs/network.md", "at most {}, and for five more minutes", timed("internal/reach/network", "maxTTL")},
		{"docs/network.md", "and at least {}, are permitted", sized("internal/reach/network", "leastBurst")},
		{"docs/network.md", "| {} records, 64 KiB;", counted("internal/reach/network", "maxRecords")},
		{"docs/network.md", "| read up to {} and 10 s |", sized("internal/reach/network", "maxHello")},
		{"docs/network.md", "| read up to 64 KiB and {} |", timed("internal/reach/network", "nameTimeout")},

		{"docs/interpreter.md", "[-listen {}]", []string{s.text("internal/inside/interpreter", "DefaultListen")}},
		{"docs/interpreter.md", "the last {} of each stream", sized("internal/inside/interpreter", "maxBacklog")},
		{"docs/interpreter.md", "leaves a line unread for {},", timed("internal/inside/interpreter", "writeTime")},
		{"docs/interpreter.md", "still running {} after the interrupt", timed("internal/inside/interpreter", "Patience")},
		{"docs/interpreter.md", "up to {} may wait", counted("internal/inside/interpreter", "maxWaiting")},
		{"docs/interpreter.md", "There may be {} contexts", counted("internal/inside/interpreter", "maxContexts")},
		{"docs/interpreter.md", "A request may have {}.", sized("internal/inside/interpreter", "maxBody")},

		{"docs/templates.md", "steps copy: at most {} and 100,000 files", sized("internal/app/daemon", "maxContext")},
		{"docs/templates.md", "1 GiB and {} files", counted("internal/app/daemon", "maxContextEntries")},
		{"docs/templates.md", "not started, they are removed after {}.", timed("internal/core/manager", "maxUnstarted")},
		{"docs/templates.md", "may have {} secrets, of at most 64 KiB each", counted("internal/core/manager", "maxSecrets")},
		{"docs/templates.md", "of at most {} each and 256 KiB together", sized("internal/core/manager", "maxSecretBytes")},
	}
}

// count is how pages write a number.
func count[T ~int | ~int64](n T) []string {
	plain := strconv.FormatInt(int64(n), 10)
	if len(plain) <= 3 {
		return []string{plain}
	}
	return []string{plain, plain[:len(plain)-3] + "," + plain[len(plain)-3:]}
}

// size is how pages write bytes.
func size(n int64) []string {
	unit := 0
	for n >= 1<<10 && n%(1<<10) == 0 && unit < 3 {
		n, unit = n>>10, unit+1
	}
	return []string{fmt.Sprint(n, " ", []string{"bytes", "KiB", "MiB", "GiB"}[unit])}
}

// span is how pages write a time.
func span(d time.Duration) (list []string) {
	words := map[int64]string{1: "a", 2: "two", 5: "five"}
	for unit, length := range map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour} {
		if d%length != 0 {
			continue
		}
		n := int64(d / length)
		plural := unit
		if n != 1 {
			plural += "s"
		}
		list = append(list, fmt.Sprint(n, " ", plural), fmt.Sprint(n, " ", unit[:1]))
		if word, ok := words[n]; ok {
			if unit == "hour" && n == 1 {
				word = "an"
			}
			list = append(list, word+" "+plural)
		}
	}
	if d == 30*time.Minute {
		list = append(list, "half an hour")
	}
	return list
}

// oneLine joins the lines of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// scopes are the constants of packages.
type scopes struct {
	t       *testing.T
	fset    *token.FileSet
	imports types.Importer
	known   map[string]*types.Scope
}

func newScopes(t *testing.T) *scopes {
	t.Helper()
	fset := token.NewFileSet()
	return &scopes{t: t, fset: fset, imports: importer.ForCompiler(fset, "source", nil), known: make(map[string]*types.Scope)}
}

// Import implements types.Importer: what constants of limits are made of is in time.
func (s *scopes) Import(path string) (*types.Package, error) {
	if path == "time" {
		return s.imports.Import(path)
	}
	return nil, fmt.Errorf("package %q is not read", path)
}

// value returns a constant of the package in dir.
func (s *scopes) value(dir, name string) constant.Value {
	s.t.Helper()
	if s.known[dir] == nil {
		names, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			s.t.Fatal(err)
		}
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(s.fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				s.t.Fatal(err)
			}
			files = append(files, file)
		}
		// What needs other packages has no type, and is no constant of this test.
		c := types.Config{Importer: s, IgnoreFuncBodies: true, Error: func(error) {}}
		p, _ := c.Check(dir, s.fset, files, nil)
		s.known[dir] = p.Scope()
	}
	c, ok := s.known[dir].Lookup(name).(*types.Const)
	if !ok {
		s.t.Fatalf("package %s has no constant %s", dir, name)
	}
	return c.Val()
}

func (s *scopes) number(dir, name string) int64 {
	s.t.Helper()
	n, ok := constant.Int64Val(constant.ToInt(s.value(dir, name)))
	if !ok {
		s.t.Fatalf("%s.%s is no whole number", dir, name)
	}
	return n
}

func (s *scopes) text(dir, name string) string {
	s.t.Helper()
	return constant.StringVal(s.value(dir, name))
}
