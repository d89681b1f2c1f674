package shell

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBashReadsMessagesThroughInterrupts sends messages in pieces, with interrupts between
// them, and loses none.
func TestBashReadsMessagesThroughInterrupts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d := bashDialect()
	shell := exec.CommandContext(ctx, d.args[0], d.args[1:]...)
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	send := func(s string) {
		if _, err := io.WriteString(stdin, s); err != nil {
			t.Error(err)
		}
	}
	hear := func(want string) {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q (%v)", lines.Text(), want, lines.Err())
		}
	}
	send(d.frame("echo ready >&250"))
	hear("ready")
	for i := range 5 {
		time.Sleep(readTime) // else the interrupt ends the message before
		message := d.frame(fmt.Sprintf("echo message %d >&250", i))
		for piece := range slices.Chunk([]byte(message), 7+i) {
			if err := shell.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
			send(string(piece))
			time.Sleep(readTime)
		}
		hear(fmt.Sprint("message ", i))
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	_ = shell.Wait() // the end of its input is no success
}

// readTime is how long a shell has to read what there is.
const readTime = 20 * time.Millisecond

// TestQuotedASCIIIsWhatItWas has bash print every byte, whatever locale it is in.
func TestQuotedASCIIIsWhatItWas(t *testing.T) {
	t.Parallel()
	var every strings.Builder
	for i := 1; i < 256; i++ {
		every.WriteByte(byte(i))
		every.WriteString(`'\` + string(rune(i)))
	}
	for _, text := range []string{"", "plain", "it's", `\`, "ä", "日本'\\", "\xff\xfe", "\x01\x7f\u0080", every.String()} {
		quoted := quoteASCII(text)
		if strings.ContainsFunc(quoted, func(r rune) bool { return r >= 0x80 }) {
			t.Errorf("%q is not ASCII", quoted)
		}
		for _, locale := range []string{"C", "C.UTF-8"} {
			printing := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+quoted)
			printing.Env = append(printing.Environ(), "LC_ALL="+locale)
			if got, err := printing.Output(); err != nil || string(got) != text {
				t.Errorf("%s: got %q, %v, want %q", locale, got, err, text)
			}
		}
	}
}

func TestQuickCheckKnowsWhereBashMightEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": true, "echo hello": true, "x=$(pwd)": true, `ls "$(dirname "$f" | head -n 1)" && make`: true, "echo $((1 + 2)) $(a; b || c)": true,
		"a=() b=(one two)": true, "for i in 1; do echo ${i}; done": true, "diff <(ls a) <(ls b)": true,
		"echo $(": false, "echo $(if)": false, "echo $(;)": false, "echo $(a;)": false, "echo $(a | )": false, "echo $(fi)": false, `echo "$(`: false,
		"echo <(": false, "echo >(a": false, "x=(": false, "x+=(a": false, "x=(<<)": false, "echo $((1": false, `echo $("a)`: false, "echo $(time)": false,
		"f() { for i in ${x}; do case i in *) if :; then :; fi;; esac; done; }": false, // has an end of everything
	} {
		if got := quickCheck(text) != ""; got != want {
			t.Errorf("%q: checked in the shell: %t, want %t", text, got, want)
		}
	}
}

// prefix is how much two texts have in common at their beginning, in bytes.
func prefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// tokens are what texts are made of that hardly ever can be parsed.
var tokens = strings.Split("{ } ( ) if then fi else elif for in do done case esac ;; ;& ; & | || && ' \" ` $ ${ $(( )) [[ ]] (( <<E E < x a=( f() "+
	"function time ! coproc select until while # \\ $' $[ ] ?( @( <<< <<-E echo ${x:- ${x# |& &> >& a[ += ~ =~ let x) $( <( >( $(x) =() $(if a=(x)", " ")

// TestQuickCheckIsSound has one bash check random texts: it ends at none, runs none, and
// takes none that a check in a process of its own does not take.
func TestQuickCheckIsSound(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ran := filepath.Join(t.TempDir(), "ran")
	d := bashDialect()
	var messages strings.Builder
	var texts []string
	for range 2000 {
		var text strings.Builder
		for range 1 + r.IntN(8) {
			text.WriteString(tokens[r.IntN(len(tokens))] + []string{"", " ", " ", "\n", "\n: >" + ran + "\n"}[r.IntN(5)])
		}
		if quick := quickCheck(text.String()); quick != "" && len(texts) < 400 {
			texts = append(texts, text.String())
			full := d.checkCommand(d.quote(text.String() + end))
			messages.WriteString(d.frame("{ if " + quick + " ; then if " + full + "; then echo right; else printf 'took %s\\n' " + d.quote(text.String()) + "; fi; else echo right; fi; } >&250"))
			messages.WriteString(d.frame("for i in next; do echo $i; done >&250"))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, d.args[0], d.args[1:]...)
	shell.Stdin = strings.NewReader(messages.String())
	got, _ := shell.Output() // the end of its input is no success
	const each = "right\nnext\n"
	if want := strings.Repeat(each, len(texts)); string(got) != want {
		good := prefix(string(got), want) / len(each)
		t.Errorf("%q: got %.100q", texts[min(good, len(texts)-1)], got[good*len(each):])
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a check has run something")
	}
}
