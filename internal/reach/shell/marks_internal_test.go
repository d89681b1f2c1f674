package shell

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const testToken = "0123456789abcdef0123456789abcdef"

// heard is what marks tell, as text.
type heard struct{ bytes.Buffer }

func (h *heard) marks(token string) *marks {
	m := &marks{
		text: func(b []byte) { h.Write(b) },
		mark: func(kind byte, payload string) { fmt.Fprintf(h, "{%c%s}", kind, payload) },
		bad:  func(string) { h.WriteString("{bad}") },
	}
	m.expectToken(token)
	return m
}

func wrap(s string) string { return separator + testToken + s + separator + testToken }

func TestMarksAreFoundWhereverTheyAreCut(t *testing.T) {
	t.Parallel()
	in := "a" + wrap("C") + wrap("B") + "out\x1eput" + separator + testToken[:31] + "x" + wrap("E0 /dir \x1e") + "\x1e0123 after"
	want := "a{C}{B}out\x1eput" + separator + testToken[:31] + "x{E0 /dir \x1e}\x1e0123 after"
	for size := 1; size <= len(in); size++ {
		var h heard
		m := h.marks(testToken)
		for i := 0; i < len(in); i += size {
			m.writeOutput([]byte(in[i:min(len(in), i+size)]))
		}
		m.flushHeld()
		if got := h.String(); got != want {
			t.Fatalf("in pieces of %d: got %q, want %q", size, got, want)
		}
	}
}

func TestMarksThatCannotBe(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		wrap(""):                              "{bad}{bad}",
		wrap("E" + strings.Repeat("x", 9000)): "{bad}",
		separator + testToken + "E1":          separator + testToken + "E1",
	} {
		var h heard
		m := h.marks(testToken)
		m.writeOutput([]byte(in))
		m.flushHeld()
		got := h.String()
		if !strings.HasPrefix(got, strings.TrimSuffix(want, "{bad}")) || strings.Contains(want, "bad") != strings.Contains(got, "bad") {
			t.Errorf("%.80q: got %.80q, want %q", in, got, want)
		}
	}
	for payload, want := range map[string]string{
		"0 /": "0 / true", "255 /a b": "255 /a b true", "1 relative": "1  true", "1 ": "1  true", "256 /": "0  false", "-1 /": "0  false",
		"x /": "0  false", "": "0  false", "1": "0  false", "0001 /": "0  false", "+1 /": "1 / true", "3 /a\x00b": "3  true",
	} {
		status, dir, ok := parseEnd(payload)
		if got := fmt.Sprintf("%d %s %t", status, dir, ok); got != want {
			t.Errorf("%q: got %q, want %q", payload, got, want)
		}
	}
}

// FuzzMarks holds that no text without the token is ever lost, changed or taken for
// a mark, and that cutting it changes nothing.
func FuzzMarks(f *testing.F) {
	f.Add([]byte("text"), []byte("more\x1e"), uint64(1))
	f.Add([]byte(separator+testToken[:20]), []byte(wrap("E0 /")), uint64(2))
	f.Fuzz(func(t *testing.T, before, output []byte, seed uint64) {
		if bytes.Contains(before, []byte(testToken)) || bytes.Contains(output, []byte(testToken)) {
			t.Skip()
		}
		in := string(before) + wrap("B") + string(output) + wrap("E7 /d") + string(before)
		want := string(before) + "{B}" + string(output) + "{E7 /d}" + string(before)
		var h heard
		m := h.marks(testToken)
		for rest, r := []byte(in), rand.New(rand.NewPCG(seed, 0)); len(rest) > 0; {
			n := 1 + r.IntN(len(rest))
			m.writeOutput(rest[:n])
			rest = rest[n:]
			if len(m.held) > maxPayload+2*len(m.edge) {
				t.Fatalf("holds %d bytes", len(m.held))
			}
		}
		m.flushHeld()
		if got := h.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// FuzzHostileMarks holds that no answer of a shell, however it looks, crashes or
// makes the reader hold more than a bound.
func FuzzHostileMarks(f *testing.F) {
	f.Add([]byte(wrap("E")), []byte(wrap("X")))
	f.Add([]byte(separator+testToken), []byte(wrap("B")+wrap("E999 /")))
	f.Fuzz(func(t *testing.T, stdout, stderr []byte) {
		l := &shellProcess{between: memory.NewWindow(nil, 100, 1)}
		l.stdout = marks{text: l.textHandler(false), mark: l.markHandler(false), bad: l.failGarbled}
		l.stderr = marks{text: l.textHandler(true), mark: l.markHandler(true), bad: l.failGarbled}
		a := &callResult{parserOutput: memory.NewWindow(nil, 100, 1), done: make(chan struct{})}
		a.stdout.window, a.stderr.window = memory.NewWindow(nil, 100, 1), memory.NewWindow(nil, 100, 1)
		l.call = a
		l.stdout.expectToken(testToken)
		l.stderr.expectToken(testToken)
		for _, p := range [][]byte{stdout, stdout} {
			_, _ = l.outputWriter(&l.stdout).Write(p)
			_, _ = l.outputWriter(&l.stderr).Write(stderr)
		}
		l.finishCall(a)
		if a.status < 0 || a.status > 255 || len(a.stdout.window.Bytes()) > 200 || len(l.takeLate()) > 200 {
			t.Errorf("%+v", a)
		}
	})
}

func TestRingKeepsTheEnd(t *testing.T) {
	t.Parallel()
	r := newRing(10, nil)
	var all []byte
	for i := range 100 {
		piece := bytes.Repeat([]byte{byte(i)}, i%23)
		_, _ = r.Write(piece)
		all = append(all, piece...)
		for _, offset := range []int64{-1, 0, int64(len(all)) - 3, int64(len(all)), 1 << 40} {
			chunk, _ := r.readAt(offset, 5)
			first := int64(max(0, len(all)-10))
			at := min(max(offset, first), int64(len(all)))
			if chunk.Offset != at || chunk.Next != at+int64(len(chunk.Data)) || len(chunk.Data) != int(min(5, int64(len(all))-at)) ||
				!bytes.Equal(chunk.Data, all[at:chunk.Next]) || chunk.Ended {
				t.Fatalf("%d bytes, from %d: %+v", len(all), offset, chunk)
			}
		}
	}
	r.endWriting()
	if chunk, _ := r.readAt(int64(len(all))-1, 5); !chunk.Ended || len(chunk.Data) != 1 {
		t.Errorf("at the end: %+v", chunk)
	}
	if chunk, _ := r.readAt(int64(len(all))-3, 2); chunk.Ended {
		t.Errorf("before the end: %+v", chunk)
	}
}

func TestRingStaysWithinItsAccount(t *testing.T) {
	t.Parallel()
	budget := memory.NewBudget(memory.Options{Total: 4 << 20, PerOwner: 1 << 20}) // a quarter of that for sessions
	account := budget.OpenSession("alice")
	r := newRing(10<<20, account)
	all := make([]byte, 3<<20)
	for i := range all {
		all[i] = byte(i >> 10)
	}
	for at := 0; at < len(all); at += 5000 {
		_, _ = r.Write(all[at:min(len(all), at+5000)])
	}
	chunk, _ := r.readAt(0, 10<<20)
	if n := len(chunk.Data); n < 128<<10 || n > 256<<10 || chunk.Next != int64(len(all)) || !bytes.Equal(chunk.Data, all[chunk.Offset:]) {
		t.Errorf("%d bytes are kept, from %d to %d; want the last ones, about 256 KiB", n, chunk.Offset, chunk.Next)
	}
	if own, _ := budget.Used("alice"); own > 256<<10 {
		t.Errorf("%d bytes are reserved", own)
	}
	r.releaseMemory()
	if account.Used() != 0 {
		t.Errorf("%d bytes are reserved at the end", account.Used())
	}
	other := newRing(10<<20, account)
	account.Close()
	_, _ = other.Write(all)
	if chunk, _ := other.readAt(0, 10<<20); len(chunk.Data) == 0 || len(chunk.Data) > firstRingPage || !bytes.Equal(chunk.Data, all[chunk.Offset:]) {
		t.Errorf("without an account %d bytes are kept, want a few", len(chunk.Data))
	}
}
