package config_test

import (
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

var update = flag.Bool("update", false, "write the golden files")

// user returns the options of an ordinary user whose only file is text, unless
// that is empty.
func user(text string, environ ...string) config.Options {
	return config.Options{
		Environ: environ,
		UID:     1000,
		Home:    "/home/u",
		ReadFile: func(name string) ([]byte, error) {
			if text == "" {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		},
		Usable: func(string, int) bool { return true },
	}
}

// load fails the test on an error.
func load(t *testing.T, o config.Options) config.Config {
	t.Helper()
	c, err := config.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// problems returns the lines of the error that loading o must give.
func problems(t *testing.T, o config.Options) []string {
	t.Helper()
	_, err := config.Load(o)
	p, ok := errors.AsType[*config.Problems](err)
	if !ok {
		t.Fatalf("error = %v, want *Problems", err)
	}
	var lines []string
	for _, one := range p.List {
		lines = append(lines, one.String())
	}
	return lines
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	want := config.Sandbox{
		UseSandbox: false, Image: "host", WorkDir: "/workspace", MemoryLimit: 536870912, DiskLimit: 10 << 30, PIDsLimit: 1024, CommandScreen: "off",
		CPULimit: 1, Timeout: 5 * time.Minute, NetworkEnabled: false,
	}
	for name, text := range map[string]string{
		"no file":       "",
		"no section":    "[search]\nengine = \"m\"\n",
		"empty section": "[sandbox]\n",
		"only comments": "# nothing\n",
		"byte order":    "\ufeff[sandbox]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, user(text))
			if diff := cmp.Diff(want, c.Sandbox); diff != "" {
				t.Errorf("sandbox (-want +got):\n%s", diff)
			}
			if len(c.Sources) != 0 {
				t.Errorf("sources = %v, want none", c.Sources)
			}
		})
	}
}

func TestPartialSectionKeepsOtherDefaults(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"section": "[sandbox]\nmemory_limit = \"2g\"\n",
		"inline":  "sandbox = { memory_limit = \"2g\" }\n",
		"dotted":  "sandbox.memory_limit = \"2g\"\n",
		"number":  "[sandbox]\nmemory_limit = 2147483648\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := config.Default().Sandbox
			want.MemoryLimit = 2 << 30
			c := load(t, user(text))
			if diff := cmp.Diff(want, c.Sandbox); diff != "" {
				t.Errorf("sandbox (-want +got):\n%s", diff)
			}
			if !c.Explicit(config.KeyMemoryLimit) || c.Explicit(config.KeyCPULimit) {
				t.Errorf("sources = %v, want the memory limit alone", c.Sources)
			}
		})
	}
}

func TestOpenManusFile(t *testing.T) {
	t.Parallel()
	o := user("")
	o.ReadFile = nil
	o.File = filepath.Join("testdata", "openmanus.toml")
	c := load(t, o)
	want := config.Sandbox{
		UseSandbox: true, Image: "python:3.12-slim", WorkDir: "/workspace", MemoryLimit: 1 << 30, DiskLimit: 10 << 30, PIDsLimit: 1024, CommandScreen: "off",
		CPULimit: 2, Timeout: 5 * time.Minute, NetworkEnabled: true,
	}
	if diff := cmp.Diff(want, c.Sandbox); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	ignored := []string{"browser", "search", "mcp", "runflow"}
	if diff := cmp.Diff(ignored, c.Ignored); diff != "" {
		t.Errorf("ignored (-want +got):\n%s", diff)
	}
	daytona := config.Default().Daytona
	daytona.Key, daytona.VNCPassword, daytona.ServerURL = "not-a-real-key", "not-a-real-password", "https://daytona.example/api"
	if diff := cmp.Diff(daytona, c.Daytona); diff != "" {
		t.Errorf("daytona (-want +got):\n%s", diff)
	}
	if c.File != o.File {
		t.Errorf("file = %q, want %q", c.File, o.File)
	}
	llm := config.LLM{APIType: "openai", Model: "some-model", BaseURL: "https://llm.example/v1/", APIKey: "sk-not-a-real-key", MaxTokens: 8192, Temperature: new(0.0)}
	if diff := cmp.Diff(llm, c.LLM); diff != "" {
		t.Errorf("llm (-want +got):\n%s", diff)
	}
	llm.Model = "some-vision-model"
	if diff := cmp.Diff(map[string]config.LLM{"vision": llm}, c.NamedLLMs); diff != "" {
		t.Errorf("named (-want +got):\n%s", diff)
	}
}

func TestLayers(t *testing.T) {
	t.Parallel()
	o := user("[sandbox]\nimage = \"file\"\nwork_dir = \"/file\"\ntimeout = 60\n",
		"SANDPIT_SANDBOX_WORK_DIR=/env", "SANDPIT_SANDBOX_TIMEOUT=90", "SANDPIT_SANDBOX_CPU_LIMIT=0.5",
		"SANDPIT_SANDBOX_USE_SANDBOX=1", "SANDPIT_SANDBOX_IMAGE=", "SANDPIT_REQUIRE=1")
	o.Overrides = []config.Override{
		{Flag: "--timeout", Key: config.KeyTimeout, Value: "2m"},
		{Flag: "--network", Key: config.KeyNetworkEnabled, Value: "true"},
	}
	c := load(t, o)
	want := config.Sandbox{
		UseSandbox: true, Image: "file", WorkDir: "/env", MemoryLimit: 512 << 20, DiskLimit: 10 << 30, PIDsLimit: 1024, CommandScreen: "off",
		CPULimit: 0.5, Timeout: 2 * time.Minute, NetworkEnabled: true,
	}
	if diff := cmp.Diff(want, c.Sandbox); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	sources := map[config.Key]string{
		config.KeyImage:          "/home/u/.config/sandpit/config.toml:2",
		config.KeyWorkDir:        "SANDPIT_SANDBOX_WORK_DIR",
		config.KeyTimeout:        "--timeout",
		config.KeyCPULimit:       "SANDPIT_SANDBOX_CPU_LIMIT",
		config.KeyUseSandbox:     "SANDPIT_SANDBOX_USE_SANDBOX",
		config.KeyNetworkEnabled: "--network",
	}
	if diff := cmp.Diff(sources, c.Sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestFirstOfTwoVariablesWins(t *testing.T) {
	t.Parallel()
	c := load(t, user("", "SANDPIT_SANDBOX_IMAGE=first", "SANDPIT_SANDBOX_IMAGE=second", "=odd", "odder"))
	if c.Sandbox.Image != "first" {
		t.Errorf("image = %q, want first", c.Sandbox.Image)
	}
}

func TestTwoConfigurationsShareNothing(t *testing.T) {
	t.Parallel()
	a := load(t, user("[sandbox]\nimage = \"a\"\n"))
	b := load(t, user("", "SANDPIT_SANDBOX_CPU_LIMIT=2"))
	if a.Sandbox.Image != "a" || a.Sandbox.CPULimit != 1 || b.Sandbox.Image != "host" || b.Sandbox.CPULimit != 2 {
		t.Errorf("a = %+v, b = %+v", a.Sandbox, b.Sandbox)
	}
	if a.Explicit(config.KeyCPULimit) || b.Explicit(config.KeyImage) {
		t.Errorf("sources: a = %v, b = %v", a.Sources, b.Sources)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	o := user("", "SANDPIT_SANDBOX_TIMEOUT=soon", "SANDPIT_SANDBOX_MEMORY=1g", "SANDPIT_SANDBOX_XYZ=s3cret",
		"SANDPIT_ENGINE=bin/engine", "SANDPIT_SANDBOX_NETWORK_ENABLED=yes")
	o.ReadFile = nil
	o.File = filepath.Join("testdata", "problems.toml")
	o.Overrides = []config.Override{
		{Flag: "--memory", Key: config.KeyMemoryLimit, Value: "1m"},
		{Flag: "--cpus", Key: config.KeyCPULimit, Value: "many"},
		{Flag: "--odd", Key: "sandbox.odd", Value: "1"},
	}
	_, err := config.Load(o)
	if sandpit.CodeOf(err) != sandpit.Invalid || !errors.Is(err, sandpit.Invalid) {
		t.Errorf("code = %q, want invalid", sandpit.CodeOf(err))
	}
	golden := filepath.Join("testdata", "problems.golden")
	if *update {
		if writeErr := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o600); writeErr != nil {
			t.Fatal(writeErr)
		}
	}
	want, readErr := os.ReadFile(golden)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(err.Error()+"\n", "\n")); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Error("the error shows a secret")
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	file := "/home/u/.config/sandpit/config.toml:2: "
	for line, want := range map[string]string{
		`memory_limit = "31m"`:              `sandbox.memory_limit: "31m" is too small; use at least 32m`,
		`memory_limit = -1`:                 `sandbox.memory_limit: -1 is too small; use at least 32m`,
		`memory_limit = 5e9`:                `sandbox.memory_limit: 5e+09 is not a size; use for example "512m" or "2g"`,
		`memory_limit = ["1g"]`:             `sandbox.memory_limit: a list is not a size; use for example "512m" or "2g"`,
		`memory_limit = {a = 1}`:            `sandbox.memory_limit: a table is not a size; use for example "512m" or "2g"`,
		`memory_limit = "9e"`:               `sandbox.memory_limit: "9e" is not a size; use for example 512m or 2g`,
		`memory_limit = "9000000p"`:         `sandbox.memory_limit: "9000000p" is larger than any machine`,
		`disk_limit = "1k"`:                 `sandbox.disk_limit: "1k" is too small; use at least 1m`,
		`command_screen = "no"`:             `sandbox.command_screen: "no" is not one of off, warn, ask, deny`,
		`confine_files = "perhaps"`:         `sandbox.confine_files: "perhaps" is text; use true or false without quotes`,
		`screen_deny = ["git push", ""]`:    `sandbox.screen_deny: has an empty rule`,
		`screen_deny = 3`:                   `sandbox.screen_deny: 3 is not a list of rules; use for example ["git push *force*"]`,
		`screen_ask = ["a", 1]`:             `sandbox.screen_ask: a list is not a list of rules; use for example ["git push *force*"]`,
		`screen_warn = ["echo 'a b'"]`:      `sandbox.screen_warn: rule "echo 'a b'" has quotes or a backslash; write ? for a character inside an argument that you cannot write`,
		`screen_allow = ["/usr/bin/git x"]`: `sandbox.screen_allow: rule "/usr/bin/git x" names a directory; name the program alone, such as "git"`,
		`screen_allow = ["git\u0000"]`:      `sandbox.screen_allow: rule "git\x00" has a control character in it`,
		`screen_deny = ["git push"]`:        `sandbox.screen_deny: has no effect without a screen; set sandbox.command_screen, to deny for example, or to off`,
		`command_screen = true`:             `sandbox.command_screen: true is not one of off, warn, ask, deny`,
		`pids_limit = 0`:                    `sandbox.pids_limit: 0 is not a number of processes; use 1 to 1048576`,
		`pids_limit = "9"`:                  `sandbox.pids_limit: "9" is not a number of processes; use 1 to 1048576`,
		`cpu_limit = 0`:                     `sandbox.cpu_limit: 0 is out of range; use 0.01 to 1024`,
		`cpu_limit = -0.5`:                  `sandbox.cpu_limit: -0.5 is out of range; use 0.01 to 1024`,
		`cpu_limit = inf`:                   `sandbox.cpu_limit: +Inf is out of range; use 0.01 to 1024`,
		`cpu_limit = nan`:                   `sandbox.cpu_limit: NaN is out of range; use 0.01 to 1024`,
		`cpu_limit = "1"`:                   `sandbox.cpu_limit: "1" is not a number of CPUs; use for example 0.5 or 2`,
		`timeout = 0`:                       `sandbox.timeout: 0 is too short; use at least 1, or omit it for 300`,
		`timeout = -9223372036854775808`: `sandbox.timeout: -9223372036854775808 is too short; ` +
			`use at least 1, or omit it for 300`,
		`timeout = 9223372037`:     `sandbox.timeout: 9223372037 is too long; use at most 9223372036 seconds`,
		`timeout = 1.5`:            `sandbox.timeout: 1.5 is not a time; use a number of seconds like 300, or text like "5m"`,
		`timeout = 2026-01-01`:     `sandbox.timeout: a date is not a time; use a number of seconds like 300, or text like "5m"`,
		`work_dir = "workspace"`:   `sandbox.work_dir: "workspace" is not an absolute path; use for example /workspace`,
		`work_dir = "/workspace/"`: `sandbox.work_dir: "/workspace/" is not a clean path; write "/workspace"`,
		`work_dir = "/a\u0000b"`:   `sandbox.work_dir: "/a\x00b" has a control character in it`,
		`image = 3`:                `sandbox.image: 3 is not the name of an image; use text, for example "python:3.12-slim"`,
		`image = "  "`:             `sandbox.image: is empty; leave it out for "host"`,
		`image = "a\nb"`:           `sandbox.image: "a\nb" has a control character in it`,
		`use_sandbox = "true"`:     `sandbox.use_sandbox: "true" is text; use true or false without quotes`,
		`network_enabled = 0`:      `sandbox.network_enabled: 0 is neither true nor false`,
		`Image = "x"`:              `sandbox.Image: unknown key; did you mean image?`,
		`workdir = "/w"`:           `sandbox.workdir: unknown key; did you mean work_dir?`,
		`network = true`:           `sandbox.network: unknown key; did you mean network_enabled?`,
		`zzz = 1`:                  `sandbox.zzz: unknown key`,
		`"` + longName + `" = 1`:   `"sandbox.` + longName[:52] + `...": unknown key`,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := problems(t, user("[sandbox]\n"+line+"\n"))
			if diff := cmp.Diff([]string{file + want}, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

var longName = strings.Repeat("long", 30)

func TestSectionProblems(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sandbox = 3":                ":1: sandbox: is not a section; write [sandbox] on a line of its own",
		"[[sandbox]]\nx = 1":         ":1: sandbox: is not a section; write [sandbox] on a line of its own",
		"\n[Sandbox]":                ":2: Sandbox: unknown section; did you mean [sandbox]?",
		"[sandboxes]":                ":1: sandboxes: unknown section; did you mean [sandbox]?",
		"timeout = 3":                ":1: timeout: stands outside of its section; write it below [sandbox]",
		"statedir = '/x'":            ":1: statedir: unknown key; did you mean state_dir?",
		"'sandbox.image' = 1":        ":1: sandbox.image: unknown key",
		"engine = '/'\nengine = '/'": ":2: not valid TOML: Key 'engine' has already been defined.",
		"engine = 'x'":               `:1: engine: "x" is not an absolute path; it must start with /`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			got := problems(t, user(text))
			if diff := cmp.Diff([]string{"/home/u/.config/sandpit/config.toml" + want}, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The values of other programs' settings do not matter to us, even where
// they break the file.
func TestSyntaxErrorsShowNoSecrets(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"supersecret", "'supersecret", `"supersecret`, `"supersecret\q"`, "55555x", "55555.5555.5", "0x55555supersecret",
		"2026-55-55555", "'a' supersecret", "supersecret = 3", "55555_", "99999999999999999999955555", "[supersecret",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			got := problems(t, user("[llm]\napi_key = "+value+"\n"))
			if len(got) != 1 || strings.Contains(got[0], "supersecret") || strings.Contains(got[0], "55555") {
				t.Errorf("problems = %q, want one without the value", got)
			}
			if !strings.Contains(got[0], "not valid TOML") {
				t.Errorf("problems = %q, want a word about TOML", got)
			}
		})
	}
}

func TestFileChoice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	present := filepath.Join(dir, "present.toml")
	if err := os.WriteFile(present, []byte("[sandbox]\nimage = \"found\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large.toml")
	if err := os.WriteFile(large, []byte(strings.Repeat("#\n", 33<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.toml")
	for name, tc := range map[string]struct {
		flag, variable, problem string
	}{
		"flag":             {flag: present},
		"variable":         {variable: present},
		"flag wins":        {flag: present, variable: missing},
		"missing flag":     {flag: missing, problem: "--config: cannot read " + missing + ": no such file or directory"},
		"missing variable": {variable: missing, problem: "SANDPIT_CONFIG: cannot read " + missing + ": no such file or directory"},
		"a directory":      {flag: dir, problem: "--config: cannot read " + dir + ": is a directory"},
		"too large":        {flag: large, problem: "--config: " + large + " is larger than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := config.Options{File: tc.flag, Environ: []string{"SANDPIT_CONFIG=" + tc.variable}, UID: 1000, Home: dir}
			if tc.problem != "" {
				if diff := cmp.Diff([]string{tc.problem}, problems(t, o)); diff != "" {
					t.Errorf("problems (-want +got):\n%s", diff)
				}
				return
			}
			if c := load(t, o); c.File != present || c.Sandbox.Image != "found" {
				t.Errorf("file = %q, image = %q", c.File, c.Sandbox.Image)
			}
		})
	}
}

func TestUnreadableDefaultFile(t *testing.T) {
	t.Parallel()
	o := user("")
	o.ReadFile = func(string) ([]byte, error) { return nil, fs.ErrPermission }
	want := []string{"/home/u/.config/sandpit/config.toml: cannot read /home/u/.config/sandpit/config.toml: permission denied"}
	if diff := cmp.Diff(want, problems(t, o)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	for key, want := range map[config.Key]string{
		config.KeyEngine:      "SANDPIT_ENGINE",
		config.KeyStateDir:    "SANDPIT_STATE_DIR",
		config.KeyImage:       "SANDPIT_SANDBOX_IMAGE",
		config.KeyMemoryLimit: "SANDPIT_SANDBOX_MEMORY_LIMIT",
	} {
		if got := key.Variable(); got != want {
			t.Errorf("%s: variable %q, want %q", key, got, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, name := range []string{"openmanus.toml", "problems.toml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "SANDPIT_SANDBOX_TIMEOUT", "90")
	}
	f.Add("sandbox = [[[1]]]", "SANDPIT_SANDBOX_\x00", "")
	f.Add("[[sandbox]]\nsandbox.a.b = 1", "SANDPIT_CONFIG", "x")
	f.Add("0", "SANDPIT_CONFIG", "\n")
	f.Fuzz(func(t *testing.T, text, name, value string) {
		c, err := config.Load(user(text, name+"="+value))
		if err == nil {
			checkSound(t, c)
			return
		}
		p, ok := errors.AsType[*config.Problems](err)
		if !ok || len(p.List) == 0 {
			t.Fatalf("error = %v, want *Problems with something in it", err)
		}
		for _, one := range p.List {
			if strings.ContainsAny(one.String(), "\n\r\x00") {
				t.Errorf("%q is not one line", one)
			}
		}
	})
}

// checkSound holds what every accepted configuration promises.
func checkSound(t *testing.T, c config.Config) {
	t.Helper()
	s := c.Sandbox
	if s.MemoryLimit < 32<<20 || s.DiskLimit < 1<<20 || s.PIDsLimit < 1 || !(s.CPULimit >= 0.01 && s.CPULimit <= 1024) || s.Timeout <= 0 ||
		s.Image == "" || !filepath.IsAbs(s.WorkDir) {
		t.Errorf("accepted %+v", s)
	}
	for _, source := range slices.Collect(maps.Values(c.Sources)) {
		if source == "" {
			t.Errorf("sources = %v, want no empty one", c.Sources)
		}
	}
}
