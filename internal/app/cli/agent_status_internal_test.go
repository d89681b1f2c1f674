package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestModelKeyHint has a vendor refuse the key of a model: the hint is about that key, and not about the key
// of a sandpit server.
func TestModelKeyHint(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer server.Close()
	m, err := openai.New(openai.Options{Model: "m", BaseURL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Generate(t.Context(), model.Request{Messages: []model.Message{{Role: model.RoleUser, Text: "x"}}}, nil)
	hint := sandpit.HintOf((&app{}).toTaskError(t.Context(), err))
	if !strings.Contains(hint, "llm.api_key") || strings.Contains(hint, "SANDPIT_API_KEY") {
		t.Errorf("%v (%s)", err, hint)
	}
}

// TestPipeStatus has the status of a program without a reader, and other errors unchanged.
func TestPipeStatus(t *testing.T) {
	t.Parallel()
	other := errors.New("no space left")
	if got := toPipeStatus(other); !errors.Is(got, other) {
		t.Errorf("%v", got)
	}
	if status, ok := errors.AsType[exitStatus](toPipeStatus(syscall.EPIPE)); !ok || int(status) != 141 {
		t.Errorf("%v", status)
	}
}

// TestLockedTranscript resumes a transcript that another agent writes: the exit status says so.
func TestLockedTranscript(t *testing.T) {
	t.Parallel()
	o := agentCommand{transcript: filepath.Join(t.TempDir(), "t.jsonl")}
	first, err := o.openTranscript(config.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resumeTranscript(o.transcript); exitCodeOf(err) != statusConflict {
		t.Errorf("%v has the exit status %d", err, exitCodeOf(err))
	}
	if err := first.close(); err != nil {
		t.Error(err)
	}
}
