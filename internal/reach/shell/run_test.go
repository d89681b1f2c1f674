package shell_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

func TestStateLastsFromCommandToCommand(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, `mkdir sub; cd sub; x='a  b'; export Y=why; f() { echo "f $1"; }; exec 3<&0`)
		r := expect(t, s, `pwd; echo "$x"; sh -c 'echo $Y'; f 1`, filepath.Join(b.dir, "sub")+"\na  b\nwhy\nf 1\n")
		if r.Cwd != filepath.Join(b.dir, "sub") || s.Info().Cwd != r.Cwd || r.Outcome != shell.Completed {
			t.Errorf("got %+v, %+v", r, s.Info())
		}
		run(t, s, "sleep 1000 & bg=$!")
		expect(t, s, `kill -0 $bg && echo lives; kill $bg; wait $bg; echo $?`, "lives\n143\n")
		run(t, s, "sh -c 'exit 7'")
		expect(t, s, "echo $?; echo $?", "7\n0\n")
	})
}

func TestStartsInTheDirectoryWithTheVariables(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	dir := filepath.Join(b.dir, "made", "for it")
	s := openIn(t, b, shell.Options{Dir: dir, Env: map[string]string{"TEST_VAR": "a 'value' \n$x"}})
	if got := s.Info().Cwd; got != dir {
		t.Errorf("at the beginning: %q", got)
	}
	expect(t, s, `pwd; printf '%s|' "$TEST_VAR" "$TERM"`, dir+"\na 'value' \n$x|dumb|")
	link := filepath.Join(b.dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	expect(t, openIn(t, b, shell.Options{Dir: link}), "pwd", link+"\n")
}

func TestOutputIsExact(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		every := make([]byte, 0, 3*256)
		for i := range 256 {
			every = append(every, byte(i), '\n', byte(i))
		}
		if err := os.WriteFile(filepath.Join(b.dir, "every"), every, 0o600); err != nil {
			t.Fatal(err)
		}
		for command, want := range map[string]string{
			"echo 42":                      "42\n",
			"seq 3":                        "1\n2\n3\n",
			"true":                         "",
			"false":                        "",
			"printf 'no newline'":          "no newline",
			`printf '\n\n$ \n> \n'`:        "\n\n$ \n> \n",
			"cat every":                    string(every),
			"printf '\\r\\033[1m\\t\\0.'":  "\r\x1b[1m\t\x00.",
			"echo 'ünï ☃ 日本 \xff\xfe'":     "ünï ☃ 日本 \xff\xfe\n",
			"printf '%0300d' 1":            fmt.Sprintf("%0300d", 1),
			"echo one # comment":           "one\n",
			"echo a;\n\n\techo b\n":        "a\nb\n",
			"":                             "",
			"   \n":                        "",
			"# nothing":                    "",
			"echo \"it's\" 'a \"q\"' \\\\": "it's a \"q\" \\\n",
			"echo one \\\n  two":           "one two\n",
			"echo x\\":                     "x\n",
			"echo \x1e":                    "\x1e\n",
		} {
			expect(t, s, command, want)
		}
		for code := range 4 {
			if r := run(t, s, fmt.Sprintf("sh -c 'exit %d'", code*85)); r.ExitCode != code*85 {
				t.Errorf("exit code %d, want %d", r.ExitCode, code*85)
			}
		}
		if r := run(t, s, `sh -c 'kill -TERM $$'`); r.ExitCode != 143 {
			t.Errorf("exit code %d, want 143", r.ExitCode)
		}
	})
}

func TestStreamsApartAndTogether(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		const command = `for i in 1 2 3; do echo out $i; echo err $i >&2; done`
		r := expect(t, s, command, "out 1\nout 2\nout 3\n")
		if got := string(r.Stderr); got != "err 1\nerr 2\nerr 3\n" || r.StderrSize != int64(len(got)) || r.StdoutSize != 18 {
			t.Errorf("stderr %q, sizes %d and %d", got, r.StdoutSize, r.StderrSize)
		}
		r, err := s.Run(t.Context(), shell.RunRequest{Command: command})
		if got := string(r.Stdout); err != nil || got != "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n" || len(r.Stderr) > 0 {
			t.Errorf("together: %q, %q, %v", got, r.Stderr, err)
		}
	})
}

func TestManyLinesAndHeredocs(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		expect(t, s, "cat <<EOF\na 'b' \"c\" $((1+1))\n\n  d\nEOF\necho after", "a 'b' \"c\" 2\n\n  d\nafter\n")
		expect(t, s, "cat <<'EOF'\n$x `y`\nEOF", "$x `y`\n")
		expect(t, s, "if true\nthen\n  for i in 1 2\n  do\n    echo $i\n  done\nfi", "1\n2\n")
		expect(t, s, "f() {\n  echo \"$1\nand $2\"\n}\nf 'one\ntwo' three", "one\ntwo\nand three\n")
		expect(t, s, "while read -r line; do echo \"<$line>\"; done <<E\na\nb\nE", "<a>\n<b>\n")
	})
}

func TestWhatCannotBeParsedIsRefusedWhole(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, "x=kept")
		for _, command := range []string{"echo 'unbalanced", `echo "unbalanced`, "if true; then", "}", "touch ran\nfor", "echo $(", "(", "a | | b"} {
			r, err := s.Run(t.Context(), shell.RunRequest{Command: command, SeparateStderr: true})
			wantCode(t, err, sandpit.Invalid)
			if len(r.Stdout) > 0 || r.ExitCode != 2 || r.StateLost || r.Outcome != shell.Completed {
				t.Errorf("%q: %+v", command, r)
			}
			if err != nil && !strings.Contains(strings.ToLower(err.Error()), "unexpected") && !strings.Contains(strings.ToLower(err.Error()), "syntax") &&
				!strings.Contains(strings.ToLower(err.Error()), "unterminated") {
				t.Errorf("%q: %v", command, err)
			}
		}
		expect(t, s, "echo $x", "kept\n")
		if _, err := os.Stat(filepath.Join(b.dir, "ran")); err == nil {
			t.Error("a part of it was run")
		}
	})
}

func TestInputIsEmptyUnlessGiven(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		expect(t, s, "cat; read -r x; echo $?; head -c 5; sh -s; cat /dev/stdin; echo end", "1\nend\n")
		expect(t, s, "echo alive", "alive\n")
		input := bytes.Repeat([]byte("\x00\xff line\n"), 50_000)
		r, err := s.Run(t.Context(), shell.RunRequest{Command: "read -r first; echo \"$first\"; wc -c", Stdin: append([]byte("first\n"), input...)})
		if got := strings.Fields(string(r.Stdout)); err != nil || len(got) != 2 || got[0] != "first" || got[1] != strconv.Itoa(len(input)) {
			t.Errorf("got %q, %v", got, err)
		}
		expect(t, s, "cat", "")
	})
}

func TestLongCommands(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		for _, size := range []int{4000, 5000, 300_000} {
			word := strings.Repeat("'", size/2) + strings.Repeat("ä", size/4)
			r := expect(t, s, "cat <<\\EOF\n"+word+"\nEOF\nv=1", word+"\n")
			if r.Truncated {
				t.Error("truncated")
			}
		}
		expect(t, s, "echo $v", "1\n")
		for _, r := range []shell.RunRequest{
			{Command: strings.Repeat("x", 1<<20+1)},
			{Command: "a\x00b"},
			{Command: "a", Timeout: -1},
			{Command: "a", MaxOutput: -1},
			{Command: "a", MaxOutput: 1 << 30},
			{Command: "a", Stdin: make([]byte, 17<<20)},
		} {
			_, err := s.Run(t.Context(), r)
			wantCode(t, err, sandpit.Invalid)
		}
	})
}

func TestMuchOutputLosesItsMiddleAndSaysSo(t *testing.T) {
	everyShell(t, shell.Options{MaxOutput: 1000}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		r := run(t, s, "echo first; head -c 20000000 /dev/zero; echo last; echo err >&2")
		want := "first\n" + strings.Repeat("\x00", 494) + "\n[19999011 bytes left out]\n" + strings.Repeat("\x00", 495) + "last\n"
		if got := string(r.Stdout); got != want || !r.Truncated || r.StdoutSize != 20_000_011 || string(r.Stderr) != "err\n" {
			t.Errorf("got %d bytes, %.40q...%.40q, %+v", len(got), got, got[max(0, len(got)-40):], r.StdoutSize)
		}
		r, err := s.Run(t.Context(), shell.RunRequest{Command: "seq 1 1000", MaxOutput: 1 << 20})
		if err != nil || r.Truncated || len(r.Stdout) != 3893 {
			t.Errorf("with more room: %d bytes, %v", len(r.Stdout), err)
		}
		expect(t, s, "echo alive", "alive\n")
	})
}

func TestOutputOfBackgroundChildren(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		expect(t, s, `{ while ! test -e go; do sleep 0.01; done; echo late; echo late too >&2; touch gone; } & echo now`, "now\n")
		if err := os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the child's end", func() bool {
			_, err := os.Stat(filepath.Join(b.dir, "gone"))
			return err == nil
		})
		r := expect(t, s, "echo mine", "mine\n")
		if got := string(r.Late); got != "late\nlate too\n" && got != "late too\nlate\n" || len(r.Stderr) > 0 {
			t.Errorf("late %q, stderr %q", got, r.Stderr)
		}
		if r := run(t, s, ":"); len(r.Late) > 0 {
			t.Errorf("told twice: %q", r.Late)
		}
	})
}

func TestShellsThatEnd(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		for command, want := range map[string]struct {
			out  string
			code int
		}{
			"echo a; exit 3; echo b":                     {"a\n", 3},
			"exit":                                       {"", 0},
			"set -e; echo a; false; echo b":              {"a\n", 1},
			"exec sh -c 'echo replaced; exit 4'":         {"replaced\n", 4},
			"kill -9 $$":                                 {"", 137},
			"trap 'echo bye' EXIT; echo a; exit 5":       {"a\nbye\n", 5},
			"sleep 1000 & exit 6":                        {"", 6},
			"set -u; echo a; echo $nothing_of_the_kind":  {"a\n", -1},
			"echo a; : ${nothing_of_the_kind:?}; echo b": {"a\n", -1},
		} {
			run(t, s, "cd /; x=lost")
			r := run(t, s, command)
			if string(r.Stdout) != want.out || want.code >= 0 && r.ExitCode != want.code || want.code < 0 && r.ExitCode == 0 {
				t.Errorf("%s: got %q and %d, want %q and %d", command, r.Stdout, r.ExitCode, want.out, want.code)
			}
			if r.Outcome != shell.Ended || !r.StateLost {
				t.Errorf("%s: %+v", command, r)
			}
			if r := expect(t, s, "echo $x; pwd; echo $?", "\n"+b.dir+"\n0\n"); !r.Fresh {
				t.Errorf("after %s: not told that the shell is new", command)
			}
			if r := run(t, s, ":"); r.Fresh {
				t.Errorf("after %s: told twice", command)
			}
		}
	})
}

func TestSettingsOfTheShellDoNotDisturb(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		run(t, s, "set -x")
		if r := expect(t, s, "echo traced", "traced\n"); strings.TrimLeft(string(r.Stderr), "+") != " echo traced\n" {
			t.Errorf("the trace: %q", r.Stderr)
		}
		run(t, s, "set +x; set -v")
		expect(t, s, "echo shown", "shown\n")
		run(t, s, "set +v; set -f; IFS=0123456789abcdef")
		expect(t, s, "echo still", "still\n")
		run(t, s, "alias printf=false eval=false command=false set=false exit=false cat=false")
		expect(t, s, "echo "+strings.Repeat("z", 9000), strings.Repeat("z", 9000)+"\n")
		run(t, s, "\\unalias -a")
		run(t, s, "set -- one two; PWD=elsewhere")
		if r := expect(t, s, "echo $2", "two\n"); r.ExitCode != 0 {
			t.Errorf("%+v", r)
		}
		expect(t, s, "break; continue", "")
		expect(t, s, "exec >/dev/null 2>&1; echo hidden", "")
		expect(t, s, "echo visible", "visible\n")
		expect(t, s, "exec <&- >&- 2>&-", "")
		expect(t, s, "echo visible", "visible\n")
	})
}

func TestBashOnly(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{})
	run(t, s, "declare -A m=([k]=v); a=(1 2 3); shopt -s extglob")
	expect(t, s, `echo ${m[k]} ${#a[@]}; case abc in @(abc|d)) echo glob;; esac`, "v 3\nglob\n")
	run(t, s, "trap 'echo \"> $BASH_COMMAND\"' DEBUG")
	expect(t, s, "echo debugged", "> echo debugged\ndebugged\n")
	run(t, s, "trap - DEBUG; trap 'echo failed' ERR")
	expect(t, s, "sh -c 'exit 1'; true", "failed\n")
	run(t, s, "trap - ERR; set -o posix")
	expect(t, s, "echo posix", "posix\n")
	expect(t, s, "diff <(echo a) <(echo a) && echo same", "same\n")
	run(t, s, "set +o posix; sh -c 'exit 9'")
	expect(t, s, "echo $?; declare -F; set | grep ^__sandpit", "9\n")
	run(t, s, "eval '[[ ;; ' 2>/dev/null") // after which bash reads what follows otherwise
	expect(t, s, "for i in one; do echo $i; done", "one\n")
	for _, locale := range []string{"C", "C.UTF-8"} {
		run(t, s, "LC_ALL="+locale)
		expect(t, s, "echo 'ä日\xff'; printf '%s\n' \"${x:-'ü'}\"", "ä日\xff\n'ü'\n")
	}
}
