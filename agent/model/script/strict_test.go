package script_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/agent/model/script"
)

// post sends a body to a server as a client of the vendor would.
func post(t *testing.T, path, body string, edit func(*http.Request)) (int, string) {
	t.Helper()
	m, err := script.Parse([]byte("[[turn]]\ntext = \"ok\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(script.NewServer(m, script.ServerOptions{}))
	defer server.Close()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.URL+path, strings.NewReader(body)) //nolint:usetesting // the test may have ended
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer x")
	req.Header.Set("X-Api-Key", "x")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	if edit != nil {
		edit(req)
	}
	res, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

const (
	pixel     = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	functions = `"tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}]`
	called    = `{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{}"}}]}`
)

// TestChat has requests for chat completions, and a part of the error that each gets; "" if it gets no error.
func TestChat(t *testing.T) {
	t.Parallel()
	messages := func(list string) string { return `{"model":"script","messages":[` + list + `]}` }
	for body, want := range map[string]string{
		messages(`{"role":"user","content":"hello"}`):                                                                                                        "",
		messages(`{"role":"user","content":[{"type":"text","text":"a"}]}`):                                                                                   "",
		messages(`{"role":"user","content":"a"},` + called + `,{"role":"tool","tool_call_id":"c1","content":""}`):                                            "",
		messages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pixel + `"}}]}`):                               "",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"temperature":0,"max_completion_tokens":5,` + functions + `,"tool_choice":"required"}`: "",
		`{"model":"script"`:  "could not parse the JSON",
		`{"model":"script"}`: "Missing required parameter: 'messages'.",
		messages(``):         "empty array",

		messages(`{"role":"user","content":"a","foo":1}`):                                                        "Unknown parameter: 'messages[0].foo'.",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"max_token":5}`:                            "Unknown parameter: 'max_token'.",
		`{"model":"script","messages":"hello"}`:                                                                  "Invalid type for 'messages'",
		`{"model":"other","messages":[{"role":"user","content":"a"}]}`:                                           "model_not_found",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"temperature":2.5}`:                        "decimal_above_max_value",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"max_tokens":0}`:                           "integer_below_min_value",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"max_tokens":1.5}`:                         "Invalid type for 'max_tokens'",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"stream_options":{}}`:                      "only allowed when 'stream' is enabled",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"tool_choice":"auto"}`:                     "only allowed when 'tools' are specified",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":1}`: "at the same time",
		messages(`{"role":"robot","content":"a"}`):                                                               "Invalid value: 'robot'.",

		messages(`{"role":"user"}`):                                             "Missing required parameter: 'messages[0].content'.",
		messages(`{"role":"assistant"}`):                                        "expected a string, got null",
		messages(`{"role":"user","content":"a"},` + called):                     "did not have response messages: c1",
		messages(called + `,{"role":"user","content":"a"}`):                     "did not have response messages: c1",
		messages(called + `,{"role":"tool","tool_call_id":"c2","content":"a"}`): "must be a response to a preceding message",
		messages(`{"role":"tool","tool_call_id":"c1","content":"a"}`):           "must be a response to a preceding message",

		messages(called + `,{"role":"tool","tool_call_id":"c1","content":"a"},{"role":"tool","tool_call_id":"c1","content":"a"}`): "must be a response to a preceding message",
		messages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,!!!"}}]}`):              "invalid_base64",
		messages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGVsbG8="}}]}`):         "invalid_image_format",
		messages(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}`):                     "invalid_image_url",
		messages(called + `,{"role":"tool","tool_call_id":"c1","content":[{"type":"image_url","image_url":{"url":"x"}}]}`):        "only allowed for messages with role 'user'",

		messages(`{"role":"assistant","tool_calls":[]}`):                                                                                                     "empty array",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a b"}}]}`:                              "does not match pattern",
		`{"model":"script","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a","parameters":{"type":"string"}}}]}`: "invalid_function_parameters",
	} {
		checkAnswer(t, "/v1/chat/completions", body, want)
	}
}

// TestResponses is TestChat for responses.
func TestResponses(t *testing.T) {
	t.Parallel()
	input := func(list string) string { return `{"model":"script","store":false,"input":[` + list + `]}` }
	const call = `{"type":"function_call","call_id":"c1","name":"bash","arguments":"{}"}`
	for body, want := range map[string]string{
		`{"model":"script","input":"hello"}`:                                                                            "",
		input(`{"role":"user","content":"hello"}`):                                                                      "",
		input(`{"type":"message","role":"user","content":[{"type":"input_text","text":""}]}`):                           "",
		input(`{"role":"user","content":"a"},` + call + `,{"type":"function_call_output","call_id":"c1","output":"x"}`): "",
		`{"model":"script"}`:                                             "Missing required parameter: 'input'.",
		`{"model":"script","input":[]}`:                                  "empty array",
		`{"model":"script","input":"a","messages":[]}`:                   "Unknown parameter: 'messages'.",
		`{"model":"script","input":"a","previous_response_id":"resp_1"}`: "previous_response_not_found",
		input(call): "No tool output found for function call c1.",
		input(`{"type":"function_call_output","call_id":"c1","output":"x"}`):                                                "No tool call found for function call output with call_id c1.",
		input(`{"role":"user","content":[{"type":"text","text":"a"}]}`):                                                     "Invalid value: 'text'.",
		input(`{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,aGk="}]}`):                "invalid_image_format",
		input(`{"type":"reasoning","id":"rs_1","summary":[]},{"role":"assistant","content":"a"}`):                           "Items are not persisted",
		input(`{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"???"},{"role":"assistant","content":"a"}`): "could not be verified",
		input(`{"type":"robot"}`): "Invalid value: 'robot'.",
		`{"model":"script","input":"a","tools":[{"type":"function","function":{"name":"bash"}}]}`: "Unknown parameter: 'tools[0].function'.",
		`{"model":"script","input":"a","tools":[{"type":"function"}]}`:                            "Missing required parameter: 'tools[0].name'.",
	} {
		checkAnswer(t, "/v1/responses", body, want)
	}
}

// TestMessages is TestChat for Anthropic's messages.
func TestMessages(t *testing.T) {
	t.Parallel()
	messages := func(list string) string { return `{"model":"script","max_tokens":9,"messages":[` + list + `]}` }
	const (
		use    = `{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"bash","input":{}}]}`
		result = `{"type":"tool_result","tool_use_id":"c1","content":"x"}`
		image  = `{"type":"image","source":{"type":"base64","media_type":"image/%s","data":"`
	)
	for body, want := range map[string]string{
		messages(`{"role":"user","content":"hello"}`):                                                     "",
		messages(`{"role":"user","content":"a"},{"role":"user","content":"b"}`):                           "",
		messages(`{"role":"user","content":"a"},{"role":"assistant","content":"b"}`):                      "",
		messages(use + `,{"role":"user","content":[` + result + `,{"type":"text","text":"b"}]}`):          "",
		messages(`{"role":"user","content":[` + strings.Replace(image, "%s", "png", 1) + pixel + `"}}]}`): "",
		`{"model":"script","messages":[{"role":"user","content":"a"}]}`:                                   "max_tokens: Field required",
		`{"model":"script","max_tokens":0,"messages":[{"role":"user","content":"a"}]}`:                    "max_tokens: Input should be greater than or equal to 1",
		`{"model":"script","max_tokens":"9","messages":[]}`:                                               "max_tokens: Input should be a valid integer",
		messages(``): "messages: at least one message is required",
		`{"model":"script","max_tokens":9,"temperature":1.5,"messages":[{"role":"user","content":"a"}]}`: "temperature: range: 0..1",
		`{"model":"script","max_tokens":9,"max_token":9,"messages":[]}`:                                  "max_token: Extra inputs are not permitted",
		`{"model":"other","max_tokens":9,"messages":[{"role":"user","content":"a"}]}`:                    "not_found_error",
		messages(`{"role":"assistant","content":"a"}`):                                                   `first message must use the \"user\" role`,
		messages(`{"role":"system","content":"a"}`):                                                      "messages.0.role: Input should be 'user' or 'assistant'",
		messages(`{"role":"user","content":""}`):                                                         "all messages must have non-empty content",
		messages(`{"role":"user","content":[{"type":"text","text":""}]}`):                                "text content blocks must be non-empty",
		messages(`{"role":"user","content":[{"type":"text","text":" "}]}`):                               "must contain non-whitespace text",
		messages(`{"role":"user","content":[{"type":"text","text":"a","x":1}]}`):                         "messages.0.content.0.text.x: Extra inputs are not permitted",
		messages(`{"role":"user","content":"a"},{"role":"assistant","content":"b "}`):                    "cannot end with trailing whitespace",
		messages(use): "`tool_use` ids were found without `tool_result` blocks immediately after: c1",
		messages(use + `,{"role":"user","content":"b"}`):                                                                                                                                     "`tool_use` ids were found without",
		messages(use + `,{"role":"user","content":[{"type":"text","text":"b"},` + result + `]}`):                                                                                             "`tool_use` ids were found without",
		messages(use + `,{"role":"user","content":[` + result + `,` + result + `]}`):                                                                                                         "unexpected `tool_use_id` found",
		messages(`{"role":"user","content":[` + result + `]}`):                                                                                                                               "unexpected `tool_use_id` found",
		messages(`{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"c.1","name":"bash","input":{}}]}`):                                                   "tool_use.id: String should match pattern",
		messages(`{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"c1","name":"bash","input":"{}"}]}`):                                                  "Input should be a valid dictionary",
		messages(`{"role":"user","content":[` + strings.Replace(image, "%s", "jpeg", 1) + pixel + `"}}]}`):                                                                                   "Image does not match the provided media type image/jpeg",
		messages(`{"role":"user","content":[` + strings.Replace(image, "%s", "bmp", 1) + pixel + `"}}]}`):                                                                                    "Input should be 'image/jpeg'",
		messages(`{"role":"user","content":[` + strings.Replace(image, "%s", "png", 1) + `aGVsbG8="}}]}`):                                                                                    "Could not process image",
		messages(`{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"b"}]}`):                                                        "Invalid `signature` in `thinking` block",
		`{"model":"script","max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"a","input_schema":{}}]}`:                                                              "tools.0.custom.input_schema.type: Field required",
		`{"model":"script","max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"a b","input_schema":{"type":"object"}}]}`:                                             "tools.0.custom.name: String should match pattern",
		`{"model":"script","max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"a","input_schema":{"type":"object"}},{"name":"a","input_schema":{"type":"object"}}]}`: "Tool names must be unique.",
		messages(`{"role":"user","content":[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},`, 5), ",") + `]}`):                       "A maximum of 4 blocks",
	} {
		checkAnswer(t, "/v1/messages", body, want)
	}
}

func checkAnswer(t *testing.T, path, body, want string) {
	t.Helper()
	status, text := post(t, path, body, nil)
	if want == "" {
		if status != http.StatusOK || !strings.Contains(text, "ok") {
			t.Errorf("%s: %d %s, want a response", body, status, text)
		}
		return
	}
	if status/100 != 4 || !strings.Contains(text, want) {
		t.Errorf("%s: %d %s, want a complaint with %q", body, status, text, want)
	}
	var document struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(text))).Decode(&document); err != nil || document.Error.Type == "" || document.Error.Message == "" {
		t.Errorf("%s: %s is not an error document: %v", body, text, err)
	}
	if path == "/v1/messages" && document.Type != "error" {
		t.Errorf("%s: the document is of type %q", body, document.Type)
	}
}

// TestVersions has a parameter that only one version of Anthropic's API has.
func TestVersions(t *testing.T) {
	t.Parallel()
	const body = `{"model":"script","max_tokens":9,"temperature":1,"messages":[{"role":"user","content":"a"}]}`
	for version, want := range map[string]string{"2023-06-01": `"text":"ok"`, "2026-10-21": "temperature: Extra inputs are not permitted"} {
		if _, text := post(t, "/v1/messages", body, func(r *http.Request) { r.Header.Set("Anthropic-Version", version) }); !strings.Contains(text, want) {
			t.Errorf("version %s: %s, want %s", version, text, want)
		}
	}
}

// TestHeaders has requests that are refused because of their headers, address or method.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		path   string
		edit   func(*http.Request)
		status int
		want   string
	}{
		{"/v1/chat/completions", func(r *http.Request) { r.Header.Del("Authorization") }, 401, "You didn't provide an API key"},
		{"/v1/messages", func(r *http.Request) { r.Header.Del("X-Api-Key"); r.Header.Del("Authorization") }, 401, "authentication_error"},
		{"/v1/messages", func(r *http.Request) { r.Header.Del("X-Api-Key") }, 400, "Field required"}, // the key is in Authorization
		{"/v1/messages", func(r *http.Request) { r.Header.Set("Anthropic-Version", "2020-01-01") }, 400, "is not a valid version"},
		{"/v1/messages", func(r *http.Request) { r.Header.Del("Anthropic-Version") }, 400, "anthropic-version: header is required"},
		{"/openai/deployments/script/chat/completions", nil, 404, "Resource not found"},
		{"/openai/deployments/script/chat/completions?api-version=1", nil, 401, "API key"},
		{"/v1/robots", nil, 404, "Invalid URL (POST /v1/robots)"},
		{"/v1/responses", func(r *http.Request) { r.Method, r.Body, r.ContentLength = http.MethodGet, nil, 0 }, 405, "Method Not Allowed"},
	} {
		if status, text := post(t, tc.path, "{}", tc.edit); status != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %d %s, want %d with %q", tc.path, status, text, tc.status, tc.want)
		}
	}
}
