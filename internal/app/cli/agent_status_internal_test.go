package cli

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
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
