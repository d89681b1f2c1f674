package mcpclient_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := mcpclient.Parse([]byte(`{"mcpServers": {
		"a": {"command": "npx", "args": ["-y", "server"], "env": {"API_KEY": "k-123456", "HOME": "/tmp"}, "cwd": "/work"},
		"b": {"type": "sse", "url": "http://localhost:3000/sse", "headers": {"Authorization": "Bearer t-123456"}},
		"c": {"type": "streamable-http", "url": "https://example.com/mcp"},
		"d": {"url": "https://example.com/mcp"},
		"e": {"disabled": true, "type": "whatever"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := mcpclient.Config{
		"a": {Type: mcpclient.Stdio, Command: "npx", Args: []string{"-y", "server"}, Env: map[string]string{"API_KEY": "k-123456", "HOME": "/tmp"}, Dir: "/work"},
		"b": {Type: mcpclient.SSE, URL: "http://localhost:3000/sse", Headers: map[string]string{"Authorization": "Bearer t-123456"}},
		"c": {Type: mcpclient.HTTP, URL: "https://example.com/mcp"},
		"d": {URL: "https://example.com/mcp"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"k-123456", "Bearer t-123456", "t-123456"}, got.Secrets()); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	server := func(s string) string { return `{"mcpServers": {"x": ` + s + `}}` }
	for text, want := range map[string]string{
		``:                                 "EOF",
		`{"mcpServers": {}} {}`:            "nothing after it",
		`{"servers": {}}`:                  "servers",
		server(`{}`):                       "want a command, or a url",
		server(`{"command": "a", "x": 1}`): `"x"`,
		server(`{"type": "pigeon", "command": "a"}`):                            "unknown type",
		server(`{"type": "stdio"}`):                                             "want a command",
		server(`{"command": "a", "url": "http://b"}`):                           "neither url nor headers",
		server(`{"command": "a", "cwd": "b"}`):                                  "absolute",
		server(`{"command": "a", "env": {"B=C": "d"}}`):                         "invalid env",
		server(`{"command": "a\u0000"}`):                                        "zero byte",
		server(`{"url": "file:///etc/passwd"}`):                                 "http://",
		server(`{"url": "http://user:password@b"}`):                             "without a password",
		server(`{"type": "http", "command": "a"}`):                              "want a command, or a url",
		server(`{"url": "http://b", "args": ["c"]}`):                            "neither command",
		server(`{"url": "http://b", "headers": {"A": "b\r\nc"}}`):               "header",
		`{"mcpServers": {"": {"command": "a"}}}`:                                "printable",
		`{"mcpServers": {"a\nb": {"command": "a"}}}`:                            "printable",
		`{"mcpServers": {"` + strings.Repeat("x", 65) + `": {"command": "a"}}}`: "printable",
		strings.Repeat(" ", 1<<20) + `{}`:                                       "more than 1048576 bytes",
	} {
		_, err := mcpclient.Parse([]byte(text))
		if sandpit.CodeOf(err) != sandpit.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v; want %q", text, err, want)
		}
	}
	many := map[string]any{}
	for i := range 65 {
		many[strings.Repeat("x", i%64+1)+map[bool]string{true: "y"}[i == 64]] = map[string]string{"command": "a"}
	}
	data, err := json.Marshal(map[string]any{"mcpServers": many})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mcpclient.Parse(data); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("%d servers: %v", len(many), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mcpServers": {"a": {"command": "b", "args": ["c"], "env": {"D": "e"}}}}`))
	f.Add([]byte(`{"mcpServers": {"a": {"url": "http://b/c", "type": "sse", "headers": {"D": "e"}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		servers, err := mcpclient.Parse(data)
		if err != nil && sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%v has the code %s", err, sandpit.CodeOf(err))
		}
		for name, s := range servers {
			if (s.Command == "") == (s.URL == "") || name == "" || s.Type == mcpclient.Stdio != (s.Command != "") {
				t.Errorf("%q: %+v", name, s)
			}
		}
	})
}
