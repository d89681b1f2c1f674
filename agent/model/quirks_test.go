package model_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/anthropic"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
)

// TestQuirks has streams of chat completions as servers other than OpenAI's send them.
func TestQuirks(t *testing.T) {
	t.Parallel()
	const end = `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`
	for name, tc := range map[string]struct {
		chunks []string
		calls  []model.ToolCall // an ID of "" is any
		text   string
		code   sandpit.Code
	}{
		"arguments as an object": {
			chunks: []string{`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"bash","arguments":{"command":"ls"}}}]}}]}`, end},
			calls:  []model.ToolCall{{ID: "a", Name: "bash", Arguments: `{"command":"ls"}`}},
		},
		"calls that all have the index 0": {
			chunks: []string{
				`{"choices":[{"delta":{"role":"assistant","content":"","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]}}]}`,
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"b","type":"function","function":{"name":"look","arguments":"{}"}}]}}]}`, end,
			},
			calls: []model.ToolCall{{ID: "a", Name: "bash", Arguments: `{"command":"ls"}`}, {ID: "b", Name: "look", Arguments: "{}"}},
		},
		"two calls with one ID": {
			chunks: []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"bash","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"look","arguments":"{}"}}]}}]}`, end},
			calls:  []model.ToolCall{{ID: "a", Name: "bash", Arguments: "{}"}, {ID: "a", Name: "look", Arguments: "{}"}},
		},
		"null everywhere, the name in each piece, and no ID": {
			chunks: []string{
				`{"choices":[{"delta":{"content":null,"refusal":null,"tool_calls":null},"finish_reason":null}],"usage":null,"error":null}`,
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":null,"function":{"name":"bash","arguments":null}}]}}]}`,
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"bash","arguments":"{\"comm"}}]}}]}`,
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":null,"arguments":"and\":1}"}}]}}]}`, `{"choices":[],"usage":{"prompt_tokens":1}}`, end,
			},
			calls: []model.ToolCall{{Name: "bash", Arguments: `{"command":1}`}},
		},
		"content in parts": {
			chunks: []string{
				`{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Hel"}]}}]}`,
				`{"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}`,
			},
			text: "Hello",
		},
		"an error as a chunk": {
			chunks: []string{`{"object":"error","message":"out of memory","type":"InternalServerError","param":null,"code":500}`}, code: sandpit.Unavailable,
		},
		"an error as a text": {chunks: []string{`{"error":"model runner has stopped"}`}, code: sandpit.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				_, _ = io.WriteString(w, ": hello\n\ndata: "+strings.Join(tc.chunks, "\n\ndata: ")+"\n\n")
			}))
			t.Cleanup(server.Close)
			m, err := openai.New(openai.Options{Model: "m", BaseURL: server.URL, Calls: model.Calls{Attempts: 1}})
			if err != nil {
				t.Fatal(err)
			}
			res, err := m.Generate(t.Context(), ask("x"), nil)
			if tc.code != "" {
				if sandpit.CodeOf(err) != tc.code {
					t.Errorf("%+v, %v", res, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range res.Message.Calls {
				if i < len(tc.calls) && tc.calls[i].ID == "" && c.ID != "" {
					res.Message.Calls[i].ID = ""
				}
			}
			if diff := cmp.Diff(tc.calls, res.Message.Calls); diff != "" || res.Message.Text != tc.text {
				t.Errorf("text %q, calls (-want +got):\n%s", res.Message.Text, diff)
			}
		})
	}
}

// TestInterleavedThinking has thinking between the other blocks of a message. It goes back in the same
// order, which the API requires, and before everything else if the message was changed.
func TestInterleavedThinking(t *testing.T) {
	t.Parallel()
	const stream = `data: {"type":"message_start","message":{}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"1","signature":"s1"}}

data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":"One. "}}

data: {"type":"content_block_start","index":2,"content_block":{"type":"redacted_thinking","data":"2"}}

data: {"type":"content_block_start","index":3,"content_block":{"type":"text","text":"Two."}}

data: {"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"a","name":"bash","input":{}}}

data: {"type":"content_block_start","index":5,"content_block":{"type":"thinking","thinking":"3","signature":"s3"}}

data: {"type":"content_block_start","index":6,"content_block":{"type":"tool_use","id":"b","name":"look","input":{}}}

data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}

data: {"type":"message_stop"}

`
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Messages []struct{ Content []struct{ Type string } }
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			t.Error(err)
		}
		got = nil
		for _, b := range request.Messages[min(1, len(request.Messages)-1)].Content {
			got = append(got, b.Type)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}))
	t.Cleanup(server.Close)
	m, err := anthropic.New(anthropic.Options{Model: "m", BaseURL: server.URL, Calls: model.Calls{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r := ask("x")
	res, err := m.Generate(t.Context(), r, nil)
	if err != nil || res.Message.Text != "One. Two." || len(res.Message.Calls) != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, tc := range []struct{ text, want string }{
		{"One. Two.", "thinking text redacted_thinking text tool_use thinking tool_use"},
		{"Changed", "thinking redacted_thinking thinking text tool_use tool_use"},
	} {
		answer := res.Message
		answer.Text = tc.text
		again := r
		again.Messages = append(slices.Clone(r.Messages), answer, model.Message{Role: model.RoleTool, CallID: "a", Text: "1"}, model.Message{Role: model.RoleTool, CallID: "b", Text: "2"})
		if _, err := m.Generate(t.Context(), again, nil); err != nil {
			t.Fatal(err)
		}
		if order := strings.Join(got, " "); order != tc.want {
			t.Errorf("%s: %s, want %s", tc.text, order, tc.want)
		}
	}
}

// TestBrokenArguments sends a conversation back in which the model has written arguments that are not a JSON object. Each
// protocol gets an object: servers refuse anything else, in this request and in all later ones.
func TestBrokenArguments(t *testing.T) {
	t.Parallel()
	written := map[string]string{
		`{"a":1}`: `{"a":1}`, `{"a":1.50,"b":"<"}`: `{"a":1.50,"b":"<"}`, `{"a`: `{"invalid_arguments":"{\"a"}`, `[1]`: `{"invalid_arguments":"[1]"}`,
		"null": `{"invalid_arguments":"null"}`, `{"b":12345678901234567890,"a":"\ud800x"}`: "{\"a\":\"\uFFFDx\",\"b\":12345678901234567890}",
	}
	for _, protocol := range []string{"messages", "chat", "responses"} {
		for arguments, want := range written {
			var body []byte
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ = io.ReadAll(r.Body) // compared below
				w.WriteHeader(http.StatusBadRequest)
			}))
			t.Cleanup(server.Close)
			var m model.Model
			var err error
			if protocol == "messages" {
				m, err = anthropic.New(anthropic.Options{Model: "m", BaseURL: server.URL, Calls: model.Calls{Attempts: 1}})
			} else {
				m, err = openai.New(openai.Options{Model: "m", BaseURL: server.URL, API: openai.API(protocol), Calls: model.Calls{Attempts: 1}})
			}
			if err != nil {
				t.Fatal(err)
			}
			r := ask("x")
			r.Messages = append(r.Messages, model.Message{Role: model.RoleAssistant, Calls: []model.ToolCall{{ID: "a", Name: "bash", Arguments: arguments}}},
				model.Message{Role: model.RoleTool, CallID: "a", Text: "invalid JSON", Failed: true})
			if _, err := m.Generate(t.Context(), r, nil); sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("%s: %v", protocol, err)
			}
			if protocol != "messages" {
				quoted, err := json.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				want = string(quoted)
			}
			if !strings.Contains(plain(body), plain([]byte(want))) {
				t.Errorf("%s: the request for %q is %s, want %s in it", protocol, arguments, body, want)
			}
		}
	}
}

// plain undoes the escapes that JSON encoders need not use.
func plain(text []byte) string { return strings.ReplaceAll(string(text), `\u003c`, "<") }
