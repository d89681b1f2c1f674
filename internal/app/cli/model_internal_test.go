package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	modelscript "github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// loadLLM loads a configuration file with a text.
func loadLLM(t *testing.T, text string) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{File: file, Environ: []string{"HOME=" + t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestOpenModel opens a model of each protocol from a configuration, and asks it.
func TestOpenModel(t *testing.T) {
	t.Parallel()
	const turns = "model = \"gpt-4o-test\"\n[[turn]]\ntext = \"ok\"\ntimes = 9\n"
	s, err := modelscript.Parse([]byte(turns))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	handler := modelscript.NewServer(s, modelscript.ServerOptions{Key: "sk-right"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "script.toml")
	if err := os.WriteFile(file, []byte(turns), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := loadLLM(t, "[llm]\nmodel = 'gpt-4o-test'\napi_key = 'sk-right'\nbase_url = '"+server.URL+"/v1'\nmax_tokens = 77\ntemperature = 0.5\n"+
		"[llm.responses]\napi_type = 'responses'\n[llm.anthropic]\napi_type = 'anthropic'\n[llm.ollama]\napi_type = 'ollama'\n"+
		"[llm.azure]\napi_type = 'azure'\nbase_url = '"+server.URL+"'\napi_version = '1'\n[llm.script]\napi_type = 'script'\nmodel = '"+file+"'\n")
	for _, name := range []string{"", "responses", "anthropic", "ollama", "azure", "script"} {
		m, err := openModel(cfg, name)
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Generate(t.Context(), model.Request{Messages: []model.Message{{Role: model.RoleUser, Text: "x"}}}, nil)
		if err != nil || res.Message.Text != "ok" {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		if name != "script" && m.Window() != 128000 {
			t.Errorf("%s: window %d, want that of the name", name, m.Window())
		}
	}
	want := "/v1/chat/completions /v1/responses /v1/messages /v1/chat/completions /openai/deployments/gpt-4o-test/chat/completions"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("paths %s, want %s", got, want)
	}
	for _, r := range s.Requests() {
		if r.MaxTokens != 77 || r.Temperature == nil || *r.Temperature != 0.5 {
			t.Errorf("request %+v, want the settings", r)
		}
	}
}

// TestOpenModelErrors has sections that no model comes from.
func TestOpenModelErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text, name, want string
		code             sandpit.Code
	}{
		{"", "", "no model is configured", sandpit.Invalid},
		{"", "vision", `no model "vision" is configured`, sandpit.NotFound},
		{"[llm]\nmodel = 'm'\napi_type = 'aws'", "", `llm.api_type "aws" is not supported`, sandpit.Unsupported},
		{"[llm]\nmodel = 'm'\nbase_url = '{YOUR_ENDPOINT}/v1'", "", "invalid base URL", sandpit.Invalid},
		{"[llm]\nmodel = 'm'\nbase_url = 'https://user:sk-secret@llm.example'", "", "invalid base URL", sandpit.Invalid},
		{"[llm]\nmodel = 'm'\napi_type = 'azure'", "", "Azure has no common address", sandpit.Invalid},
		{"[llm]\nmodel = 'm'\napi_key = 'sk-secret two'", "", "invalid API key", sandpit.Invalid},
		{"[llm]\nmodel = '/none.toml'\napi_type = 'script'", "", "/none.toml", sandpit.NotFound},
	} {
		_, err := openModel(loadLLM(t, tc.text), tc.name)
		if sandpit.CodeOf(err) != tc.code || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v (%s), want %s with %q", tc.text, err, sandpit.CodeOf(err), tc.code, tc.want)
		}
	}
}

// TestModelFindings has what sandpit doctor says about models.
func TestModelFindings(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, f := range modelFindings(loadLLM(t, "[llm]\nmodel = 'm'\n[llm.a]\napi_key = 'sk-secret'\n[llm.b]\napi_type = 'aws'\n[llm.c]\napi_type = 'script'\nmodel = '/x.toml'")) {
		text.WriteString(f.Text + "\n")
	}
	const want = "[llm]: m (openai) at the default address, API key not set\n" +
		"[llm.a]: m (openai) at the default address, API key set\n" +
		"[llm.b]: llm.api_type \"aws\" is not supported\n[llm.c]: script /x.toml\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", &text, want)
	}
}

// TestModelServer starts the server of a script, asks it, and ends it.
func TestModelServer(t *testing.T) {
	t.Parallel()
	for want, text := range map[int]string{0: "x", 2: "y"} {
		file := filepath.Join(t.TempDir(), "script.toml")
		if err := os.WriteFile(file, []byte("[[turn]]\nexpect.last = 'x'\ntext = 'served'\n[[turn]]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, w := io.Pipe()
		status := make(chan int)
		go func() {
			status <- Run(ctx, []string{"model-server", "--listen", "127.0.0.1:0", file}, Streams{Out: io.Discard, Err: w}, config.Options{})
			_ = w.Close()
		}()
		lines := bufio.NewScanner(r)
		if !lines.Scan() {
			t.Fatalf("no output: %v", lines.Err())
		}
		_, url, _ := strings.Cut(lines.Text(), " at ")
		m, err := openModel(loadLLM(t, "[llm]\nmodel = 'script'\napi_key = 'any'\nbase_url = '"+url+"/v1'\n"), "")
		if err != nil {
			t.Fatal(err)
		}
		res, err := m.Generate(t.Context(), model.Request{Messages: []model.Message{{Role: model.RoleUser, Text: text}}}, nil)
		if (err == nil) != (want == 0) || want == 0 && res.Message.Text != "served" {
			t.Errorf("%s: %+v, %v", text, res, err)
		}
		cancel()
		rest := make(chan string)
		go func() {
			var all strings.Builder
			for lines.Scan() {
				all.WriteString(lines.Text() + "\n")
			}
			rest <- all.String()
		}()
		got := <-status
		said := <-rest
		if got != want || want == 0 && !strings.Contains(said, "1 turns were not used") || want == 2 && !strings.Contains(said, "expect.last") {
			t.Errorf("%s: status %d, want %d; output:\n%s", text, got, want, said)
		}
	}
}
