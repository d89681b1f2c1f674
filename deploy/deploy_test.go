package deploy_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/telemetry"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readYAML refuses keys that into does not have.
func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, name)))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// metrics are the names of all figures of a server.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	m := telemetry.NewMetrics("v")
	m.Watch(telemetry.Sources{})
	registry, ok := m.Gatherer().(*prometheus.Registry)
	if !ok {
		t.Fatalf("the figures are kept by %T", m.Gatherer())
	}
	ch := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(ch)
		close(ch)
	}()
	names := make(map[string]bool)
	for desc := range ch {
		if name := regexp.MustCompile(`fqName: "(sandpit_[a-z_]+)"`).FindStringSubmatch(desc.String()); name != nil {
			names[name[1]] = true
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %v", names)
	}
	return names
}

var metric = regexp.MustCompile(`\bsandpit_[a-z_]+\b`)

// named returns the figures that a text speaks of.
func named(text string) map[string]bool {
	names := make(map[string]bool)
	for _, name := range metric.FindAllString(text, -1) {
		names[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
	}
	return names
}

// expectKnown expects a text to speak of figures, and of none that does not exist.
func expectKnown(t *testing.T, where, text string) {
	t.Helper()
	known, found := metrics(t), named(text)
	if len(found) == 0 {
		t.Errorf("%s speaks of no figures", where)
	}
	for name := range found {
		if !known[name] {
			t.Errorf("%s speaks of %s, which does not exist", where, name)
		}
	}
}

type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	var file rules
	readYAML(t, "prometheus/alerts.yaml", &file)
	seen := make(map[string]bool)
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if seen[r.Alert] || r.Expr == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
				!slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("rule %+v", r)
			}
			seen[r.Alert] = true
			if r.Expr != `up{job="sandpit"} == 0` {
				expectKnown(t, r.Alert, r.Expr)
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d rules", len(seen))
	}
}

// TestAlertsAreTested: of each alert it is tested that it fires, and that it does not.
func TestAlertsAreTested(t *testing.T) {
	t.Parallel()
	var file rules
	readYAML(t, "prometheus/alerts.yaml", &file)
	tests := read(t, "prometheus/alerts_test.yaml")
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if n := strings.Count(tests, "alertname: "+r.Alert+"\n") + strings.Count(tests, "alertname: "+r.Alert+","); n != 2 {
				t.Errorf("%d tests of %s, want 2", n, r.Alert)
			}
		}
	}
}

// Prometheus' own judge, where it is installed.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testengine.Skip(t, "promtool is not installed (Debian: apt-get install prometheus); only the form of the files was checked")
	}
	dir := t.TempDir()
	for _, name := range []string{"alerts.yaml", "alerts_test.yaml", "prometheus.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, "prometheus/"+name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sandpit.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "alerts.yaml"}, {"check", "config", "prometheus.yaml"}, {"test", "rules", "alerts_test.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ RefID, Expr string }
			GridPos struct{ X, Y, W, H int }
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/sandpit.json")), &board); err != nil {
		t.Fatal(err)
	}
	ids, places := make(map[int]bool), make(map[[2]int]bool)
	used := make(map[string]bool)
	for _, p := range board.Panels {
		place := [2]int{p.GridPos.X, p.GridPos.Y}
		if p.Title == "" || ids[p.ID] || places[place] || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID], places[place] = true, true
		for _, target := range p.Targets {
			if strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") {
				t.Errorf("%s: %s", p.Title, target.Expr)
			}
			for name := range named(target.Expr) {
				used[name] = true
			}
		}
	}
	if board.UID == "" || len(board.Templating.List) != 2 || len(used) < 15 {
		t.Errorf("dashboard %q with %d figures", board.UID, len(used))
	}
	expectKnown(t, "the dashboard", read(t, "grafana/sandpit.json"))
}

// Every figure is in the documentation, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	text := read(t, "../docs/deploy.md")
	expectKnown(t, "docs/deploy.md", text)
	found := named(text)
	for name := range metrics(t) {
		if !found[name] {
			t.Errorf("docs/deploy.md says nothing of %s", name)
		}
	}
}

func TestUnit(t *testing.T) {
	t.Parallel()
	unit := read(t, "sandpit.service")
	for _, line := range []string{
		"Type=notify", "Delegate=yes", "KillMode=process", "ExecStart=/usr/local/bin/sandpit serve", "StateDirectory=sandpit",
		"RuntimeDirectoryPreserve=yes",
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit has no line %s", line)
		}
	}
	// Without these a server that starts as root makes no sandbox.
	for _, capability := range []string{"CAP_SETUID", "CAP_SETGID", "CAP_SETFCAP", "CAP_SYS_ADMIN"} {
		if !regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*\b` + capability + `\b`).MatchString(unit) {
			t.Errorf("the unit takes %s away", capability)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testengine.Skip(t, "systemd-analyze is not installed")
	}
	// It looks whether the program is there.
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sandpit.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/sandpit", program)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), file) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

type service struct {
	Build           struct{ Context, Dockerfile string }
	Image           string
	Command         []string
	Init            bool
	Restart         string
	StopGracePeriod string `yaml:"stop_grace_period"`
	Ports           []string
	Environment     map[string]string
	SecurityOpt     []string `yaml:"security_opt"`
	Volumes, Tmpfs  []string
	Logging         struct {
		Driver  string
		Options map[string]string
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]service
		Volumes  map[string]any
	}
	readYAML(t, "compose.yaml", &file)
	s, ok := file.Services["sandpit"]
	if !ok || len(file.Services) != 1 {
		t.Fatalf("services: %v", file.Services)
	}
	for _, port := range s.Ports {
		if !strings.HasPrefix(port, "127.0.0.1:") {
			t.Errorf("port %s is open to all hosts", port)
		}
	}
	environ := []string{"HOME=/x"}
	for name, value := range s.Environment {
		value = regexp.MustCompile(`^\$\{[A-Z_]+:-(.*)\}$`).ReplaceAllString(value, "$1")
		environ = append(environ, name+"="+value)
	}
	if _, err := config.Load(config.Options{Environ: environ, UID: 0, ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist }}); err != nil {
		t.Errorf("its environment: %v", err)
	}
	docker := read(t, "Dockerfile")
	for _, option := range s.SecurityOpt {
		if !strings.Contains(docker, "--security-opt "+option) {
			t.Errorf("the Dockerfile says nothing of %s", option)
		}
		if !strings.Contains(read(t, "../docs/deploy.md"), option) {
			t.Errorf("docs/deploy.md says nothing of %s", option)
		}
	}
	if docker, err := exec.LookPath("docker"); err == nil && exec.CommandContext(t.Context(), docker, "compose", "version").Run() == nil {
		if out, err := exec.CommandContext(t.Context(), docker, "compose", "-f", "compose.yaml", "config", "--quiet").CombinedOutput(); err != nil {
			t.Errorf("docker compose config: %v\n%s", err, out)
		}
	} else {
		t.Log("docker compose is not installed; only the form of the file was checked")
	}
}

// The image is the binary and settings that exist.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", " ")
	known := make(map[string]bool)
	for _, d := range config.Describe(config.Default()) {
		known[d.Variables[0]] = true
	}
	var words []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		words = append(words, word)
		if word != "ENV" {
			continue
		}
		for item := range strings.FieldsSeq(rest) {
			name, value, _ := strings.Cut(item, "=")
			if strings.HasPrefix(name, "SANDPIT_") && !known[name] {
				t.Errorf("there is no setting %s", name)
			}
			// An engine lets every user enter a volume, and the server uses no such directory.
			if strings.HasSuffix(name, "_DIR") && strings.Contains(text, strconv.Quote(value)) {
				t.Errorf("%s is a volume itself", name)
			}
		}
	}
	if want := "FROM COPY COPY ENV VOLUME EXPOSE STOPSIGNAL ENTRYPOINT CMD"; strings.Join(words, " ") != want || !strings.Contains(text, "\nFROM scratch\n") {
		t.Errorf("instructions %q, want %s", words, want)
	}
}

// The recipe gives no secrets to unreviewed code, and its command has
// only flags that exist.
func TestRecipe(t *testing.T) {
	t.Parallel()
	var file struct {
		Name        string
		On          map[string]any
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn  string `yaml:"runs-on"`
			Timeout int    `yaml:"timeout-minutes"`
			Steps   []struct {
				Name, Uses, Run string
				With            map[string]any
			}
		}
	}
	readYAML(t, "ci/untrusted-tests.yaml", &file)
	text := read(t, "ci/untrusted-tests.yaml")
	if len(file.Permissions) != 1 || file.Permissions["contents"] != "read" || strings.Contains(text, "secrets.") || file.On["pull_request_target"] != nil {
		t.Error("the recipe gives away more than it must")
	}
	steps := file.Jobs["test"].Steps
	run := steps[len(steps)-1].Run
	if !strings.HasPrefix(run, "sandpit run ") || strings.ContainsAny(run, "|;&") {
		t.Fatalf("the last step is %q, want a plain command whose status is the step's", run)
	}
	help, err := exec.CommandContext(t.Context(), testengine.Path(t), "run", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	flags, _, _ := strings.Cut(run, " -- ")
	for _, flag := range regexp.MustCompile(` (--[a-z-]+)`).FindAllStringSubmatch(flags, -1) {
		if !strings.Contains(string(help), flag[1]+" ") {
			t.Errorf("sandpit run has no flag %s", flag[1])
		}
	}
	if os.Getenv(recipeVariable) == "" {
		t.Skipf("running it takes a minute or two; set %s=1", recipeVariable)
	}
	for name, want := range map[string]int{"Passes": 0, "Fails": 1} {
		if got := follow(t, run, name); got != want {
			t.Errorf("a test that %s: exit status %d, want %d", strings.ToLower(name), got, want)
		}
	}
}

// recipeVariable has TestRecipe follow the recipe.
const recipeVariable = "SANDPIT_TEST_RECIPE"

// follow runs the recipe's command on a module with one test, and returns its status.
func follow(t *testing.T, run, name string) int {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	if err := os.Symlink(testengine.Path(t), filepath.Join(bin, "sandpit")); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"go.mod": "module example.com/x\n\ngo 1.21\n",
		"x_test.go": "package x\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n" +
			"func TestPasses(t *testing.T) {}\n\n" +
			"func TestFails(t *testing.T) {\n\tif os.Getenv(\"WHICH\") == \"Fails\" {\n\t\tt.Error(\"as it should\")\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(run, " -- ", " -e WHICH="+name+" -- ", 1))
	cmd.Dir = dir
	cmd.Env = append(testengine.Environ(t.TempDir()), "GOFLAGS=", "GOMODCACHE="+filepath.Join(dir, "none"),
		"PATH="+bin+":"+os.Getenv("PATH")) // the last one counts
	if err := os.Mkdir(filepath.Join(dir, "none"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}
