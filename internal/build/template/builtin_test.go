package template_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

// TestBuiltinsAreTemplates reads the template files of the program.
func TestBuiltinsAreTemplates(t *testing.T) {
	t.Parallel()
	names := template.Builtins()
	if !slices.Contains(names, "base") || !slices.Contains(names, "code-interpreter-v1") {
		t.Errorf("there are %v", names)
	}
	for _, name := range names {
		tpl, err := template.Builtin(name)
		must(t, err)
		if tpl.Name != name || !strings.HasPrefix(string(tpl.From), "apt:bookworm,") || !strings.Contains(string(tpl.From), ",sudo,") {
			t.Errorf("%s: %s from %s", name, tpl.Name, tpl.From)
		}
		if tpl.Build.Network.Online {
			t.Errorf("%s needs a network in sandboxes", name)
		}
	}
	if tpl, err := template.Builtin("claude"); err != nil || tpl.Name != "claude-code" {
		t.Errorf("by another name: %s, %v", tpl.Name, err)
	}
	for _, name := range []string{"nothing", "", "../builtin/base", "base.toml"} {
		if _, err := template.Builtin(name); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestPackages reads templates with packages.
func TestPackages(t *testing.T) {
	t.Parallel()
	tpl, err := template.Parse([]byte(`from = "apt:bookworm"`+"\n"+`packages = ["tree", "git=1:2.39", "tree"]`+"\n"), nil)
	must(t, err)
	if tpl.From != "apt:bookworm,git=1:2.39,tree" || len(tpl.Steps) > 0 {
		t.Errorf("from %s, steps %v", tpl.From, tpl.Steps)
	}
	if _, err := (&template.Builder{}).Build(t.Context(), tpl); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("without a mirror: %v", err)
	}
	for _, text := range []string{
		`from = "apt:"`, `from = "apt:Bookworm"`, `from = "apt:bookworm/updates"`, "from = \"apt:bookworm\"\npackages = [\"-o=x\"]",
		"from = \"apt:bookworm\"\npackages = [\"a,b;c\"]", "from = \"apt:bookworm\"\npackages = [\"\"]", "from = \"debian\"\npackages = [\"a b\"]",
	} {
		if _, err := template.Parse([]byte(text), nil); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// tools is what every template of the program must be able to do, as the account that
// its sandboxes have.
const tools = `set -e
whoami; pwd
sudo -n id -u
python -c 'print(6 * 7)'
node -e 'console.log(6 * 7)'
git --version | cut -d' ' -f1,2
tput -T xterm cols > /dev/null; curl --version > /dev/null; ps > /dev/null; test -f ~/.bashrc
for as in "" "sudo -n"; do ! $as bash -lxc : 2>&1 | grep -F "id -u"; done
sudo -n bash -lc 'echo $PATH'; bash -lc 'echo $PATH'; sh -lc 'echo $PATH'
`

const toolsSay = "user\n/home/user\n0\n42\n42\ngit version\n" +
	"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games\n" +
	"/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"

// special is what only some of them can do.
var special = map[string]string{
	"claude-code":         `test -z "$(ls -A | grep -i claude)"; claude --version | grep -q '^[0-9.]* (Claude Code)$'`,
	"cloud-code":          `kubectl version --client > /dev/null; python3 -m venv /tmp/v`,
	"code-server":         `test "$(code-server --version | wc -l)" = 1; test ! -e ~/.config`,
	"codex":               `test "$(ls -A ~/.codex)" = config.toml; codex --version | grep -q '^codex-cli [0-9.]*$'`,
	"browser":             `chromium --headless --disable-gpu --disable-dev-shm-usage --dump-dom 'data:text/html,<p>it works' 2>/dev/null | grep -q 'it works'`,
	"python-3.11":         `test "$(python3 -c 'import sys; print(sys.version_info[:2])')" = "(3, 11)"; python3 -m venv /tmp/v && /tmp/v/bin/python -m pip --version > /dev/null; echo 'int main(){}' > /tmp/a.c; cc -o /tmp/a /tmp/a.c && /tmp/a`,
	"python-data-science": `python3 -c 'import numpy, pandas, scipy, sklearn, matplotlib.pyplot as p; p.plot([1, 2]); p.savefig("/tmp/x.png"); print(pandas.DataFrame({"a": [1, 2]}).a.sum())' | grep -qx 3`,
	"code-interpreter-v1": `python3 -c 'import IPython, numpy, pandas, matplotlib.pyplot as p; p.plot([1, 2]); p.savefig("/tmp/x.png")'; tsc --version > /dev/null
healthy() { for i in $(seq 300); do ! curl -fs -o /dev/null http://127.0.0.1:49999/health || return 0; sleep 0.1; done; return 1; }
sudo -n HOME=/home/user code-interpreter-service > /dev/null 2>&1 &
healthy
sudo -n pkill -9 -f '[j]upyter-server'
healthy
sudo -n pkill -9 -f '[u]vicorn main:app'
healthy`,
}

// TestBuiltinsWork builds every template of the program, makes a sandbox of each, and
// then one more template that installs packages by apt, inside.
func TestBuiltinsWork(t *testing.T) {
	if os.Getenv("SANDPIT_TEST_RECIPES") == "" {
		t.Skip("SANDPIT_TEST_RECIPES is not set")
	}
	cache, err := os.UserCacheDir()
	must(t, err)
	dir := filepath.Join(cache, "sandpit-test")
	must(t, os.MkdirAll(dir, 0o700))
	b := newBench(t)
	b.Debian = &debian.Source{Dir: filepath.Join(dir, "debian")}
	b.NPM = &npm.Source{Dir: filepath.Join(dir, "npm")}
	for _, name := range template.Builtins() {
		t.Run(name, func(t *testing.T) {
			tpl, err := template.Builtin(name)
			must(t, err)
			begun := time.Now()
			e := b.make(t, tpl)
			took := time.Since(begun)
			begun = time.Now()
			got := b.output(t, e, tools+special[name])
			t.Logf("built in %.1f s, %d MB, all tools tried in %.1f s", took.Seconds(), e.Size>>20, time.Since(begun).Seconds())
			if got != toolsSay {
				t.Errorf("%q", got)
			}
		})
	}
	t.Run("apt inside", func(t *testing.T) {
		tpl, err := template.Builtin("base")
		must(t, err)
		e := b.build(t, fmt.Sprintf("from = %q\npackages = [\"ripgrep\", \"tree\"]\n[build]\nallow = [\"deb.debian.org:80\"%s]\n", b.make(t, tpl).ID, addresses(t)))
		if got := b.output(t, e, "whoami; rg --version | head -c 7; test -x /usr/bin/tree && test -z \"$(ls /var/lib/apt/lists)\""); got != "user\nripgrep" {
			t.Errorf("%q", got)
		}
	})
}

// addresses are rules for the mirror's addresses, which in some networks are special ones.
func addresses(tb testing.TB) string {
	tb.Helper()
	list, err := net.DefaultResolver.LookupHost(tb.Context(), debian.Host)
	must(tb, err)
	var b strings.Builder
	for _, ip := range list {
		fmt.Fprintf(&b, ", %q", net.JoinHostPort(ip, "80"))
	}
	return b.String()
}
