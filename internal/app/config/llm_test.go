package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// llmOf is config.LLM with its key as a text, so that differences show it.
type llmOf struct{ Type, Model, URL, Key, Version string }

func toLLM(m config.LLM) llmOf {
	return llmOf{m.APIType, m.Model, m.BaseURL, m.APIKey.Reveal(), m.APIVersion}
}

// TestLLM has the section [llm] and the variables of vendors.
func TestLLM(t *testing.T) {
	t.Parallel()
	vendors := []string{
		"OPENAI_API_KEY=ok", "ANTHROPIC_API_KEY=ak", "AZURE_OPENAI_API_KEY=zk", "OPENAI_API_VERSION=2024", "AZURE_OPENAI_ENDPOINT=https://me.openai.azure.com",
	}
	for name, tc := range map[string]struct {
		file    string
		environ []string
		want    llmOf
	}{
		"nothing":             {want: llmOf{Type: "openai", Key: "ok"}},
		"OpenAI":              {file: "model = 'gpt'", want: llmOf{"openai", "gpt", "", "ok", ""}},
		"responses":           {file: "model = 'gpt'\napi_type = 'Responses'", want: llmOf{"responses", "gpt", "", "ok", ""}},
		"key of the file":     {file: "model = 'gpt'\napi_key = 'fk'", want: llmOf{"openai", "gpt", "", "fk", ""}},
		"variable over file":  {file: "model = 'gpt'\napi_key = 'fk'", environ: []string{"SANDPIT_LLM_API_KEY=vk", "SANDPIT_LLM_MODEL=vm"}, want: llmOf{"openai", "vm", "", "vk", ""}},
		"own address":         {file: "base_url = 'https://api.openai.com/v1'", want: llmOf{"openai", "", "https://api.openai.com/v1", "ok", ""}},
		"other address":       {file: "base_url = 'https://llm.example/v1'", want: llmOf{"openai", "", "https://llm.example/v1", "", ""}},
		"look-alike":          {file: "base_url = 'https://notopenai.com/v1'", want: llmOf{"openai", "", "https://notopenai.com/v1", "", ""}},
		"vendor's variable":   {environ: []string{"OPENAI_BASE_URL=https://llm.example/v1"}, want: llmOf{"openai", "", "https://llm.example/v1", "ok", ""}},
		"file over variable":  {file: "base_url = 'https://a.example'", environ: []string{"OPENAI_BASE_URL=https://b.example"}, want: llmOf{"openai", "", "https://a.example", "", ""}},
		"Claude":              {file: "model = 'claude-x'", want: llmOf{"anthropic", "claude-x", "", "ak", ""}},
		"Claude of others":    {file: "model = 'claude-x'\nbase_url = 'https://llm.example'", want: llmOf{"openai", "claude-x", "https://llm.example", "", ""}},
		"Anthropic's address": {file: "model = 'x'\nbase_url = 'https://api.anthropic.com/v1/'", want: llmOf{"anthropic", "x", "https://api.anthropic.com/v1/", "ak", ""}},
		"Azure":               {file: "model = 'x'\napi_type = 'azure'", want: llmOf{"azure", "x", "https://me.openai.azure.com", "zk", "2024"}},
		"Azure's address":     {file: "base_url = 'https://a.openai.azure.com'\napi_version = '2025'", want: llmOf{"azure", "", "https://a.openai.azure.com", "zk", "2025"}},
		"Ollama":              {file: "api_type = 'ollama'\nmodel = 'llama'", want: llmOf{"ollama", "llama", "", "", ""}},
		"script":              {environ: []string{"SANDPIT_LLM_API_TYPE=script", "SANDPIT_LLM_MODEL=/a/b.toml"}, want: llmOf{"script", "/a/b.toml", "", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, user("[llm]\n"+tc.file+"\n", append(tc.environ, vendors...)...))
			if diff := cmp.Diff(tc.want, toLLM(c.LLM)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNamedLLM has sections that inherit from [llm], and keys that do not go to other addresses.
func TestNamedLLM(t *testing.T) {
	t.Parallel()
	c := load(t, user(`
[llm.vision]
model = "eyes"
temperature = 0.5

[llm]
model = "base"
base_url = "https://llm.example/v1"
api_key = "bk"
max_tokens = 100
max_input_tokens = 5000
window = 7000

[llm.same]
base_url = "https://LLM.example/v2"

[llm.elsewhere]
base_url = "https://other.example/v1"

[llm.elsewhere-with-key]
base_url = "https://other.example/v1"
api_key = "ek"

[llm.claude]
base_url = ""
api_type = "anthropic"
model = "claude-x"
`, "ANTHROPIC_API_KEY=ak", "SANDPIT_LLM_MAX_TOKENS=200"))
	want := map[string]llmOf{
		"vision":             {"openai", "eyes", "https://llm.example/v1", "bk", ""},
		"same":               {"openai", "base", "https://LLM.example/v2", "bk", ""},
		"elsewhere":          {"openai", "base", "https://other.example/v1", "", ""},
		"elsewhere-with-key": {"openai", "base", "https://other.example/v1", "ek", ""},
		"claude":             {"anthropic", "claude-x", "", "ak", ""},
	}
	for name, one := range want {
		got, ok := c.FindLLM(name)
		if diff := cmp.Diff(one, toLLM(got)); diff != "" || !ok {
			t.Errorf("%s: found %v (-want +got):\n%s", name, ok, diff)
		}
		if got.MaxTokens != 200 || got.MaxInputTokens != 5000 || got.Window != 7000 {
			t.Errorf("%s: %+v, want the numbers of [llm] and of the variable", name, got)
		}
	}
	if base, ok := c.FindLLM(""); !ok || base.Model != "base" || base.Temperature != nil {
		t.Errorf("base: %+v, %v", base, ok)
	}
	if vision, _ := c.FindLLM("vision"); vision.Temperature == nil || *vision.Temperature != 0.5 {
		t.Errorf("vision: temperature %v, want 0.5", vision.Temperature)
	}
	if _, ok := c.FindLLM("none"); ok {
		t.Error("a section that does not exist was found")
	}
	if c.Sources["llm.vision.model"] == "" {
		t.Errorf("sources = %v, want llm.vision.model", c.Sources)
	}
}

func TestInvalidLLM(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[llm]\napi_type = 'robot'":               ":2: llm.api_type: \"robot\" is not one of openai, responses, anthropic, azure, ollama, script, aws",
		"[llm]\nmax_tokens = 0":                   ":2: llm.max_tokens: 0 is not a number of tokens",
		"[llm]\ntemperature = 2.5":                ":2: llm.temperature: 2.5 is not a temperature",
		"[llm]\ntemperature = 'hot'":              ":2: llm.temperature: \"hot\" is not a temperature",
		"[llm]\napi_key = ['supersecret']":        ":2: llm.api_key: is not an API key",
		"[llm]\nmodell = 'm'":                     ":2: llm.modell: unknown key; did you mean model?",
		"[llm.vision]\nmodell = 'm'":              ":2: llm.vision.modell: unknown key; did you mean model?",
		"[llm.vision]\nmax_tokens = 'many'":       ":2: llm.vision.max_tokens: \"many\" is not a number of tokens",
		"[llm.vision]\napi_key = ['supersecret']": ":2: llm.vision.api_key: is not an API key",
		"[llm.'a b']\nmodel = 'm'":                "is not the name of a model",
		"[llm.vision.deep]\nmodel = 'm'":          "llm.vision.deep: unknown key",
		"[[llm]]\nmodel = 'm'":                    "llm: is not a section",
	} {
		got := problems(t, user(text+"\n"))
		if len(got) != 1 || !strings.Contains(got[0], want) || strings.Contains(got[0], "supersecret") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	got := problems(t, user("", "SANDPIT_LLM_MODELL=x"))
	if len(got) != 1 || !strings.Contains(got[0], "did you mean SANDPIT_LLM_MODEL?") {
		t.Errorf("variable: %q", got)
	}
}
