package model_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/anthropic"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
	"github.com/sandpit-dev/sandpit/agent/model/script"
)

// refuser refuses requests with certain parameters, in the words of different servers, and
// records which parameters others have.
type refuser struct {
	next    http.Handler
	refused map[string]string // parameter to the body of the error
	seen    [][]string
}

func (s *refuser) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	var body map[string]json.RawMessage
	if err != nil || json.Unmarshal(text, &body) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	for name, answer := range s.refused {
		if _, ok := body[name]; ok {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, answer)
			return
		}
	}
	var names []string
	for name := range body {
		names = append(names, name)
	}
	s.seen = append(s.seen, names)
	r.Body = io.NopCloser(strings.NewReader(string(text)))
	s.next.ServeHTTP(w, r)
}

// TestAdapts has servers that refuse optional parameters: the client leaves them out, also from
// later requests.
func TestAdapts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refused map[string]string
		sends   string // a parameter that must be there nevertheless
		open    func(url string) (model.Model, error)
	}{
		"a server without stream_options and temperature": {
			refused: map[string]string{
				"stream_options": `{"detail":"stream_options: Extra inputs are not permitted"}`,
				"temperature":    `{"error":{"message":"Unsupported value","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}`,
			},
			sends: "max_tokens",
			open: func(url string) (model.Model, error) {
				return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1", Key: testKey, MaxTokens: 5, Temperature: new(0.5), Calls: quick})
			},
		},
		"a server with the new name of max_tokens": {
			refused: map[string]string{"max_tokens": `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens"}}`},
			sends:   "max_completion_tokens",
			open: func(url string) (model.Model, error) {
				return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1", Key: testKey, MaxTokens: 5, Calls: quick})
			},
		},
		"a model without reasoning": {
			refused: map[string]string{"include": `{"error":{"message":"Encrypted content is not supported with this model.","param":"include"}}`},
			sends:   "max_output_tokens",
			open: func(url string) (model.Model, error) {
				return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1", Key: testKey, MaxTokens: 5, API: openai.Responses, Calls: quick})
			},
		},
		"a server that forces no call": {
			refused: map[string]string{"tool_choice": `{"object":"error","message":"tool_choice=\"required\" is not supported","type":"BadRequestError","code":400}`},
			sends:   "tools",
			open: func(url string) (model.Model, error) {
				return openai.New(openai.Options{Model: "script", BaseURL: url + "/v1", Key: testKey, Calls: quick})
			},
		},
		"a model of Anthropic that thinks": {
			refused: map[string]string{
				"tool_choice": `{"type":"error","error":{"type":"invalid_request_error","message":"Thinking may not be enabled when tool_choice forces tool use."}}`,
				"temperature": `{"type":"error","error":{"type":"invalid_request_error","message":"temperature may only be set to 1 when thinking is enabled."}}`,
			},
			sends: "tools",
			open: func(url string) (model.Model, error) {
				return anthropic.New(anthropic.Options{Model: "script", BaseURL: url, Key: testKey, Temperature: new(0.5), Calls: quick})
			},
		},
		"a newer model of Anthropic": {
			refused: map[string]string{"temperature": `{"type":"error","error":{"type":"invalid_request_error","message":"temperature: Extra inputs are not permitted"}}`},
			sends:   "max_tokens",
			open: func(url string) (model.Model, error) {
				return anthropic.New(anthropic.Options{Model: "script", BaseURL: url, Key: testKey, Temperature: new(1.5), Calls: quick})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &refuser{next: script.NewServer(parse(t, "[[turn]]\ntext = \"ok\"\ntimes = 2\n"), script.ServerOptions{}), refused: tc.refused}
			server := httptest.NewServer(s)
			defer server.Close()
			m, err := tc.open(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				r := withTools(ask("x"))
				r.MustCall = true
				if res, err := m.Generate(t.Context(), r, nil); err != nil || res.Message.Text != "ok" {
					t.Fatalf("%+v, %v", res, err)
				}
			}
			for _, names := range s.seen {
				if !slices.Contains(names, tc.sends) {
					t.Errorf("parameters %q, want %q among them", names, tc.sends)
				}
			}
		})
	}
}

// TestRefusalIsFinal checks that the refusal of something else is repeated once at most.
func TestRefusalIsFinal(t *testing.T) {
	t.Parallel()
	eachClient(t, "[[turn]]\nerror = { kind = \"invalid\", message = \"the temperature of the room is unknown\" }\ntimes = 3\n", nil,
		func(t *testing.T, m model.Model, s *script.Model) {
			t.Helper()
			_, err := m.Generate(t.Context(), ask("x"), nil)
			if n := len(s.Requests()); err == nil || n > 2 {
				t.Errorf("%v after %d requests, want an error after at most 2", err, n)
			}
		})
}
