package tool_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// newBox returns a sandbox of gVisor with the machine's programs.
func newBox(tb testing.TB) sandpit.Instance {
	tb.Helper()
	return newBoxOf(tb, sandpit.Spec{})
}

func newBoxOf(tb testing.TB, spec sandpit.Spec) sandpit.Instance {
	tb.Helper()
	box, err := testgvisor.New(tb).Create(tb.Context(), sandpit.NewID(), spec)
	if err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	return box
}

// kit is a session and the tools.
type kit struct {
	testing.TB

	tools   *tool.Registry
	session *tool.Session
	calls   *[]tool.Call
}

func newKit(tb testing.TB, box sandpit.Instance, o tool.SessionOptions) kit {
	tb.Helper()
	var calls []tool.Call
	var mu sync.Mutex
	tools, err := tool.New(func(c tool.Call) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
	})
	if err != nil {
		tb.Fatal(err)
	}
	session, err := tool.NewSession(tb.Context(), box.Guest(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := session.Close(); err != nil {
			tb.Errorf("close the session: %v", err)
		}
	})
	return kit{tb, tools, session, &calls}
}

// fields is an input.
type fields map[string]any

func (k kit) call(name string, in fields) tool.Result {
	k.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		k.Fatal(err)
	}
	return k.tools.Invoke(k.Context(), k.session, name, data)
}

// want calls a tool that must succeed, with all of texts in its answer.
func (k kit) want(name string, in fields, texts ...string) tool.Result {
	k.Helper()
	r := k.call(name, in)
	if r.Problem != nil {
		k.Errorf("%s %v: %s", name, in, r.Text)
	}
	k.has(name, in, r, texts)
	return r
}

// refused calls a tool that must fail with a code, with all of texts in its answer.
func (k kit) refused(name string, in fields, code sandpit.Code, texts ...string) {
	k.Helper()
	r := k.call(name, in)
	if r.Problem == nil || r.Problem.Code != code || !r.Failed || !strings.HasPrefix(r.Text, "ERROR: ") {
		k.Errorf("%s %v: %+v, want an ERROR of code %s", name, in, r, code)
	}
	k.has(name, in, r, texts)
}

func (k kit) has(name string, in fields, r tool.Result, texts []string) {
	k.Helper()
	for _, text := range texts {
		if !strings.Contains(r.Text, text) {
			k.Errorf("%s %v: %.2000s\nwant %q in it", name, in, r.Text, text)
		}
	}
}

// lacks fails if an answer holds a text.
func (k kit) lacks(r tool.Result, text string) {
	k.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		k.Fatal(err)
	}
	if strings.Contains(r.Text, text) || strings.Contains(string(data), text) {
		k.Errorf("%.1000s\nmust not hold %q", data, text)
	}
}
