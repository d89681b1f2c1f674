package agent_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
	"github.com/sandpit-dev/sandpit/internal/testing/testtools"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// openPlainGuest opens a provider whose sandboxes have E2B's guest, and cannot have sandpit's.
func openPlainGuest(t *testing.T) sandpit.Provider {
	t.Helper()
	s := newServer(t, "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_E2B_TEMPLATES=base=host")
	url := envdtest.StartGenuine(t, s.address)
	return must(e2b.New(e2b.Options{
		Key: s.key, APIURL: url, SandboxURL: url, Identity: string(sandpit.NewID()), Poll: time.Second, Guest: e2b.GuestCloud,
	}))(t)
}

// firstCalls names the variable that has TestPlainGuest make every call. Otherwise it makes one of eight, and none that
// starts a browser.
const firstCalls = "SANDPIT_TEST_FIRST_CALLS"

// TestPlainGuest makes a call of each tool in a sandbox that has E2B's guest only: all work as they do elsewhere.
func TestPlainGuest(t *testing.T) {
	t.Parallel()
	p := openPlainGuest(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the provider: %v", err)
		}
	})
	box := must(p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{}))(t)
	for i, c := range testtools.Calls() {
		if os.Getenv(firstCalls) == "" && (c.Needs == testtools.Browser || i%8 != 0) {
			continue
		}
		for _, name := range []string{"a.txt", "b.txt"} { // of earlier calls
			if err := box.Guest().Remove(t.Context(), "", "/workspace/"+name); err != nil {
				t.Fatal(err)
			}
		}
		tools := must(tool.New(nil))(t)
		session, err := tool.NewSession(t.Context(), box.Guest(), tool.SessionOptions{ID: "plain"})
		if err != nil {
			t.Errorf("%s: %v", c.Tool, err)
			continue
		}
		r := tools.Invoke(t.Context(), session, c.Tool, must(json.Marshal(c.Input))(t))
		var code sandpit.Code
		if r.Problem != nil {
			code = r.Problem.Code
		}
		if want := strings.ReplaceAll(c.Text, testtools.Dir, "/workspace"); code == "" && !strings.Contains(r.Text, want) {
			t.Errorf("%s: %.500s\nwant %q in it", c.Tool, r.Text, want)
		}
		if ok := code == "" && len(c.Codes) == 0 || slices.Contains(c.Codes, code); !ok {
			t.Errorf("%s: %q %.500s\nwant a code of %v", c.Tool, code, r.Text, c.Codes)
		}
		if err := session.Close(); err != nil {
			t.Errorf("%s: close: %v", c.Tool, err)
		}
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
