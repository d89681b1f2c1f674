package shell_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// pieces are what random scripts are made of. They put out the same wherever they
// run.
var pieces = []string{
	`echo "$a|$b|$?"`, `a=$((a + %d))`, `b="$b%d"`, `printf '%%s' "$a"`, `printf 'no newline %d'`, `false`, `true`, `sh -c 'exit %d'`,
	`f() { echo "f%d $1 $a"; return %d; }`, `f one`, `echo err%d >&2`, "cat <<EOF\nline $a %d\n\nEOF", `for i in 1 2 3; do printf "$i"; done`,
	`if [ "$a" -gt %d ]; then echo more; else echo less; fi`, `case "$b" in *%d*) echo has;; esac`, `seq %d | tail -n 2`, `cat`, `read -r x; echo "$x"`,
	`(a=99; cd /; echo sub; exit %d)`, `a=$(echo %d)`, `echo "$(f two)"`, `cd / && pwd; cd - >/dev/null`, `set -- %d 2 3; echo $# "$*"`, `shift`, `printf '\000\001\377\n'`,
	`trap 'echo usr' USR1; kill -USR1 $$`, `{ echo grouped; echo err >&2; } 2>&1 | sort`, `! true`, `nothing_of_the_kind 2>/dev/null`, `unset b`, `: "${c:=%d}"; echo "$c"`,
	`sleep 0 & wait $!`, `eval 'echo evaluated; a=%d'`, `while [ "$a" -lt 3 ]; do a=$((a + 1)); [ "$a" = 2 ] && continue; echo "w$a"; done`, `: # comment %d`, `echo 'it'\''s' "q\"$a"`,
	`exec 5>&1; echo five >&5`, `head -c %d00 /dev/zero`, `echo "${a:-none}" | tr 0-9 a-j`, `test -e /nothing || echo absent`, `set -f; echo *; set +f`,
}

var lineNumber = regexp.MustCompile(`line [0-9]+:`)

func randomScript(r *rand.Rand) string {
	lines := make([]string, 1+r.IntN(5))
	for i := range lines {
		p := pieces[r.IntN(len(pieces))]
		args := make([]any, strings.Count(p, "%d"))
		for k := range args {
			args[k] = r.IntN(9)
		}
		if strings.ContainsRune(p, '%') {
			p = fmt.Sprintf(p, args...)
		}
		lines[i] = p
	}
	return strings.Join(lines, "\n")
}

// TestRandomScriptsDoAsInPlainBash runs random commands in a session and, each after
// those before it, in bash itself, and compares bytes and exit codes.
func TestRandomScriptsDoAsInPlainBash(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	b := newBox(t)
	for range 4 {
		s := openIn(t, b, shell.Options{Dir: b.dir})
		var script strings.Builder
		script.WriteString("exec </dev/null\n")
		var stdout, stderr bytes.Buffer
		run(t, s, "a=0")
		script.WriteString("a=0\n")
		for range 25 {
			command := randomScript(r)
			got := run(t, s, command)
			stdout.Write(got.Stdout)
			stderr.Write(got.Stderr)
			fmt.Fprintf(&stdout, "<%d>", got.ExitCode)
			// What a command says is set apart by its exit code, and $? is kept.
			script.WriteString(command + "\nstatus=$?; printf '<%d>' $status; (exit $status)\n")
			if got.StateLost {
				t.Fatalf("%s: %+v", command, got)
			}
		}
		plain := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-c", script.String(), "bash")
		plain.Dir = b.dir
		plain.Env = append(os.Environ(), "TERM=dumb")
		var wantOut, wantErr bytes.Buffer
		plain.Stdout, plain.Stderr = &wantOut, &wantErr
		if err := plain.Run(); err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() < 0 {
				t.Fatal(err)
			}
		}
		// A message of bash names a line, which is counted otherwise.
		plainErr := func(b *bytes.Buffer) string { return lineNumber.ReplaceAllString(b.String(), "line N:") }
		if stdout.String() != wantOut.String() || plainErr(&stderr) != plainErr(&wantErr) {
			t.Fatalf("in a session:\n%q\n%q\nin bash:\n%q\n%q\nof:\n%s", &stdout, &stderr, &wantOut, &wantErr, &script)
		}
	}
}
