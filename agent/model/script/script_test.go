package script_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/script"
)

func parse(t *testing.T, text string) *script.Model {
	t.Helper()
	m, err := script.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ask(text string) model.Request {
	return model.Request{System: "sys", Messages: []model.Message{{Role: model.RoleUser, Text: text}}, Tools: []model.Tool{{Name: "bash"}}}
}

func TestScript(t *testing.T) {
	t.Parallel()
	m := parse(t, `
model = "demo"
window = 8000
[[turn]]
expect = { last = "(?i)hello", any = "HELLO", system = "^sys$", role = "user", tools = ["bash"], not = "bye" }
text = "I look."
times = 2
  [[turn.call]]
  name = "bash"
  arguments = { command = "ls", n = 3, deep = { a = [1.5, true] } }
  [[turn.call]]
  id = "mine"
  name = "bash"
  raw = "{broken"
[[turn]]
stop = "length"
usage = { input = 9, cached = 3, output = 2 }
`)
	if m.Name() != "demo" || m.Window() != 8000 || m.Unused() != 3 {
		t.Errorf("name %q, window %d, unused %d", m.Name(), m.Window(), m.Unused())
	}
	want := model.Message{Role: model.RoleAssistant, Text: "I look.", Calls: []model.ToolCall{
		{ID: "call_1_1", Name: "bash", Arguments: `{"command":"ls","deep":{"a":[1.5,true]},"n":3}`},
		{ID: "mine", Name: "bash", Arguments: "{broken"},
	}}
	for range 2 {
		res, err := m.Generate(t.Context(), ask("say HELLO"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, res.Message); diff != "" || res.Stop != model.StopTools || res.Usage.Input == 0 || res.Usage.Output == 0 {
			t.Errorf("response %+v (-want +got):\n%s", res, diff)
		}
	}
	res, err := m.Generate(t.Context(), ask("x"), nil)
	if err != nil || res.Stop != model.StopLength || res.Usage != (model.Usage{Input: 9, Cached: 3, Output: 2}) {
		t.Errorf("last response: %+v, %v", res, err)
	}
	if m.Unused() != 0 || m.Err() != nil || len(m.Requests()) != 3 {
		t.Errorf("unused %d, error %v, %d requests", m.Unused(), m.Err(), len(m.Requests()))
	}
	if _, err := m.Generate(t.Context(), ask("x"), nil); sandpit.CodeOf(err) != sandpit.Invalid || !errors.Is(m.Err(), sandpit.Invalid) {
		t.Errorf("a request after the end: %v, want invalid", err)
	}
}

// TestExpect has expectations that are not met.
func TestExpect(t *testing.T) {
	t.Parallel()
	for expect, want := range map[string]string{
		`last = "bye"`:            `turn 1: expect.last: the pattern "bye" does not match "hello"`,
		`not = "hello"`:           `expect.not: the pattern "hello" matches "hello"`,
		`any = "bye"`:             `expect.any: the pattern "bye" does not match`,
		`system = "other"`:        `expect.system: the pattern "other" does not match "sys"`,
		`role = "tool"`:           `expect.role: the last message is of role "user", want "tool"`,
		`images = 1`:              `expect.images: the last message has 0 images, want at least 1`,
		`tools = ["bash", "git"]`: `expect.tools: the tool "git" is not offered, but ["bash"] are`,
	} {
		m := parse(t, "[[turn]]\nexpect = { "+expect+" }\n[[turn]]\ntext = \"no\"\n")
		for range 2 { // the script has ended
			if _, err := m.Generate(t.Context(), ask("hello"), nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", expect, err, want)
			}
		}
		if m.Err() == nil {
			t.Errorf("%s: the model has no error", expect)
		}
	}
	m := parse(t, "[[turn]]\nexpect = { last = '(?s)one.*two', images = 2 }\n")
	r := ask("x")
	r.Messages = append(r.Messages, model.Message{Role: model.RoleAssistant, Calls: []model.ToolCall{{ID: "a"}, {ID: "b"}}},
		model.Message{Role: model.RoleTool, CallID: "a", Text: "one", Images: make([]model.Image, 1)},
		model.Message{Role: model.RoleTool, CallID: "b", Text: "two", Images: make([]model.Image, 1)})
	if _, err := m.Generate(t.Context(), r, nil); err != nil {
		t.Errorf("several results: %v", err)
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "the script has no turn",
		"[[turn]]\ntxt = \"a\"":                `unknown key "turn.txt"`,
		"[[turn]]\nexpect = { lst = \"a\" }":   `unknown key "turn.expect.lst"`,
		"[[turn]]\nexpect = { last = \"(\" }":  "turn 1: expect.last: error parsing regexp",
		"[[turn]]\nstop = \"never\"":           `unknown stop "never"`,
		"[[turn]]\ntimes = -1":                 "times is -1",
		"[[turn]]\ndelay = \"soon\"":           `invalid duration "soon"`,
		"[[turn]]\nerror = { kind = \"odd\" }": `unknown kind of error "odd"`,
		"[[turn]]\ncall = [{ id = \"a\" }]":    "a call has no name",
		"[[turn]]\ncall = [{ name = \"a\", arguments = { a = 1 }, raw = \"{}\" }]": "has arguments and raw",
		"[[turn]]\nerror = { kind = \"cut\" }\ncall = [{ name = \"a\" }]":          "use two turns",
		"[[turn]\n": "toml",
	} {
		if _, err := script.Parse([]byte(text)); sandpit.CodeOf(err) != sandpit.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v (%s), want %q", text, err, sandpit.CodeOf(err), want)
		}
	}
	if _, err := script.Load(filepath.Join(t.TempDir(), "none.toml")); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("a missing file: %v (%s)", err, sandpit.CodeOf(err))
	}
	name := filepath.Join(t.TempDir(), "bad.toml")
	if err := os.WriteFile(name, []byte("[[turn]]\nodd = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := script.Load(name); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a bad file: %v, want its name", err)
	}
}

// TestFailures has the errors of the model itself, which are those of the vendors' clients.
func TestFailures(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]sandpit.Code{
		"rate_limit": sandpit.Exhausted, "quota": sandpit.Exhausted, "overloaded": sandpit.Unavailable, "server": sandpit.Unavailable,
		"unauthenticated": sandpit.Unauthenticated, "invalid": sandpit.Invalid, "too_long": sandpit.Invalid, "cut": sandpit.Unavailable,
		"nonsense": sandpit.Internal,
	} {
		m := parse(t, "[[turn]]\ntext = \"a b\"\nerror = { kind = \""+kind+"\", message = \"my text\" }\n")
		said := ""
		_, err := m.Generate(t.Context(), ask("x"), func(d model.Delta) { said += d.Text })
		if sandpit.CodeOf(err) != want || !strings.Contains(err.Error(), "my text") || said != "a b" {
			t.Errorf("%s: %v (%s) after %q, want %s", kind, err, sandpit.CodeOf(err), said, want)
		}
		if errors.Is(err, model.ErrTooLong) != (kind == "too_long") {
			t.Errorf("%s: ErrTooLong is %v", kind, errors.Is(err, model.ErrTooLong))
		}
		if m.Err() != nil {
			t.Errorf("%s: the script has ended: %v", kind, m.Err())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, turn := range []string{"error = { kind = \"hang\" }", "delay = \"1h\""} {
		if _, err := parse(t, "[[turn]]\n"+turn).Generate(ctx, ask("x"), nil); sandpit.CodeOf(err) != sandpit.Timeout {
			t.Errorf("%s: %v (%s), want timeout", turn, err, sandpit.CodeOf(err))
		}
	}
}

// TestDocumentation follows the script of docs/agent-models.md.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/agent-models.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```toml\nmodel = ")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("the page has no script")
	}
	m := parse(t, "model = "+text)
	if _, err := m.Generate(t.Context(), ask("hello"), nil); err != nil {
		t.Errorf("first turn: %v", err)
	}
	if _, err := m.Generate(t.Context(), ask("x"), nil); sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.RetryAfterOf(err) != time.Second {
		t.Errorf("second turn: %v, want exhausted with a delay", err)
	}
	if res, err := m.Generate(t.Context(), ask("hello.txt"), nil); err != nil || res.Usage.Cached != 800 || m.Unused() != 0 {
		t.Errorf("third turn: %+v, %v", res, err)
	}
}
