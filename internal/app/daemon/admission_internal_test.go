package daemon

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// mentioned is a command that is refused, and does nothing if it runs all the same.
const mentioned = "false && mkfs.ext4 /dev/sda; echo it ran"

// guestToken returns what E2B's clients show a guest.
func (w *tenancy) guestToken(t *testing.T) string {
	t.Helper()
	return field(t, w.must(t, w.bob, http.MethodPost, "/sandboxes/"+w.ids["sandbox"]+"/connect", `{"timeout": 3600}`), "envdAccessToken")
}

// startByGuest starts a command by the guest's own protocol.
func (w *tenancy) startByGuest(path string, header http.Header, message map[string]any, packed bool) func(*testing.T, string) string {
	return func(t *testing.T, command string) string {
		t.Helper()
		text, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		quoted, err := json.Marshal(command)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.ReplaceAll(text, []byte(`"COMMAND"`), quoted)
		flags := byte(0)
		if packed {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, err = z.Write(text)
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			text, flags = b.Bytes(), 1
		}
		if err != nil {
			t.Fatal(err)
		}
		frame := append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, bytes.NewReader(frame))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header.Clone()
		if req.Header == nil {
			req.Header = make(http.Header)
		}
		req.Header.Set("X-Api-Key", w.bob)
		req.Header.Set("Content-Type", "application/connect+json")
		req.Header.Set("Connect-Protocol-Version", "1")
		if packed {
			req.Header.Set("Connect-Content-Encoding", "gzip")
		}
		return w.answer(t, req)
	}
}

func (w *tenancy) answer(t *testing.T, req *http.Request) string {
	t.Helper()
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// openMCP opens a session of MCP and returns what runs a command in it.
func (w *tenancy) openMCP(t *testing.T, query ...string) func(t *testing.T, tool string, arguments map[string]any) string {
	t.Helper()
	session := ""
	call := func(t *testing.T, message map[string]any) string {
		t.Helper()
		message["jsonrpc"] = "2.0"
		text, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/mcp"+strings.Join(query, ""), bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{
			"X-Api-Key": {w.bob}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		}
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		res, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if session == "" {
			session = res.Header.Get("Mcp-Session-Id")
		}
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	call(t, map[string]any{"id": 1, "method": "initialize", "params": map[string]any{
		"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"},
	}})
	call(t, map[string]any{"method": "notifications/initialized"})
	return func(t *testing.T, tool string, arguments map[string]any) string {
		t.Helper()
		return call(t, map[string]any{"id": 2, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": arguments}})
	}
}

// build builds a template from a recipe, and returns how the build ended.
func (w *tenancy) build(t *testing.T, recipe map[string]any) string {
	t.Helper()
	recipe["from"] = "busybox"
	body, err := json.Marshal(map[string]any{"recipe": recipe})
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		Build struct {
			ID string `json:"id"`
		} `json:"build"`
	}
	if err := json.Unmarshal(w.must(t, w.bob, http.MethodPost, "/v1/templates", `{"name": "screened"}`), &made); err != nil {
		t.Fatal(err)
	}
	at := "/v1/builds/" + made.Build.ID
	w.must(t, w.bob, http.MethodPost, at, string(body))
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		text := w.must(t, w.bob, http.MethodGet, at, "")
		if status := field(t, text, "status"); status == string(sandpit.BuildReady) || status == string(sandpit.BuildFailed) {
			return string(text)
		}
	}
	t.Fatal("the build does not end")
	return ""
}
