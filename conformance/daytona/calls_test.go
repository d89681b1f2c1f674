package daytona_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// apis are the parts of the generated Go clients whose calls have a row of the table each: those of
// SDKs. The other parts are for Daytona's website and its own servers.
var apis = []string{
	"api-client-go/sandbox", "api-client-go/snapshots", "api-client-go/volumes", "api-client-go/object_storage",
	"api-client-go/regions", "api-client-go/config", "api-client-go/health", "api-client-go/api_keys",
	"toolbox-api-client-go/process", "toolbox-api-client-go/interpreter", "toolbox-api-client-go/file_system", "toolbox-api-client-go/git",
	"toolbox-api-client-go/lsp", "toolbox-api-client-go/info", "toolbox-api-client-go/port", "toolbox-api-client-go/server",
	"toolbox-api-client-go/computer_use",
}

// otherAPIs have one row each.
var otherAPIs = []string{
	"api-client-go/toolbox", "api-client-go/preview", "api-client-go/organizations", "api-client-go/docker_registry",
	"api-client-go/users", "api-client-go/webhooks", "api-client-go/audit", "api-client-go/runners", "api-client-go/jobs", "api-client-go/admin",
}

// newerCalls are calls of later SDKs that the Go clients do not have.
var newerCalls = map[string][]string{
	"api-client-go/sandbox": {
		"POST /sandbox/{sandboxIdOrName}/autopause/{interval}", "POST /sandbox/{sandboxIdOrName}/ttl/{interval}",
		"GET /sandbox/{sandboxIdOrName}/signing-key", "POST /sandbox/{sandboxIdOrName}/signing-key/rotate",
		"PUT /sandbox/{sandboxIdOrName}/secrets", "GET /secret", "GET /warm-pools",
	},
	"toolbox-api-client-go/process":     {"GET /process/pty/create-connect"},
	"toolbox-api-client-go/file_system": {"POST /files/upload-v2"},
	"toolbox-api-client-go/git":         {"POST /git/init", "GET /git/remotes", "POST /git/remotes", "POST /git/reset", "POST /git/restore", "GET /git/config", "POST /git/config"},
	"toolbox-api-client-go/server":      {"POST /env", "GET /system/metrics"},
}

// ownServers are calls that only Daytona's own servers send.
var ownServers = []string{
	"GET /sandbox/for-runner", "PUT /sandbox/{sandboxId}/state", "GET /sandbox/{sandboxId}/organization", "GET /sandbox/{sandboxId}/region-quota",
}

// bodies are those of calls that would have an effect without one.
var bodies = map[string]string{"POST /sandbox": `{"target":"nowhere"}`, "POST /sandbox/{sandboxIdOrName}/resize": `{"cpu":2}`}

// refusals are requests that the server refuses although it has the call. {id} is the ID of a sandbox.
var refusals = []struct{ what, method, path, body string }{
	{"create: `gpu`", "POST", "/api/sandbox", `{"gpu":1}`},
	{"create: `secrets`", "POST", "/api/sandbox", `{"secrets":[{"name":"a"}]}`},
	{"create: `linkedSandbox`", "POST", "/api/sandbox", `{"linkedSandbox":"a"}`},
	{"create: `outboundProxyUrl`", "POST", "/api/sandbox", `{"outboundProxyUrl":"http://a"}`},
	{"create: `subpath` outside of a volume", "POST", "/api/sandbox", `{"volumes":[{"volumeId":"a","mountPath":"/a","subpath":"../b"}]}`},
	{"create: files of an image that were not uploaded", "POST", "/api/sandbox", `{"buildInfo":{"dockerfileContent":"FROM debian:13\nCOPY a a","contextHashes":["00000000000000000000000000000000"]}}`},
	{"create: `snapshot` and `image`", "POST", "/api/sandbox", `{"snapshot":"a","buildInfo":{"dockerfileContent":"FROM debian:13"}}`},
	{"create: `cpu` of a snapshot", "POST", "/api/sandbox", `{"snapshot":"a","cpu":1}`},
	{"create: a missing snapshot", "POST", "/api/sandbox", `{"snapshot":"a"}`},
	{"create: an unknown region", "POST", "/api/sandbox", `{"target":"nowhere"}`},
	{"`resize` of the disk of a sandbox that runs", "POST", "/api/sandbox/{id}/resize", `{"disk":64}`},
	{"`resize` without a change", "POST", "/api/sandbox/{id}/resize", `{}`},
	{"`start` of a sandbox that runs", "POST", "/api/sandbox/{id}/start", ``},
	{"`archive` of a sandbox that runs", "POST", "/api/sandbox/{id}/archive", ``},
	{"`recover` of a sandbox without an error", "POST", "/api/sandbox/{id}/recover", ``},
	{"`computerUse`", "POST", "/toolbox/{id}/computeruse/start", ``},
	{"a session that does not exist", "GET", "/toolbox/{id}/process/session/a", ``},
	{"a file that does not exist", "GET", "/toolbox/{id}/files/info?path=/missing", ``},
	{"a command that takes too long", "POST", "/toolbox/{id}/process/execute", `{"command":"sleep 60","timeout":1}`},
}

// TestCalls sends each call of Daytona's clients, and requests that the server refuses, and compares
// the tables of the page with the responses.
func TestCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_RATE=100000")
	status, text := s.send(t, http.MethodPost, "/api/sandbox", "{}")
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusOK {
		t.Fatalf("create: status %d: %v: %s", status, err, text)
	}
	var b strings.Builder
	b.WriteString("| call | |\n|---|---|\n")
	for _, api := range apis {
		s.writeCalls(t, &b, api, made.ID)
	}
	b.WriteString("\n| other calls | supported |\n|---|---|\n")
	for _, api := range otherAPIs {
		calls := callsOf(t, api)
		supported := 0
		for _, call := range calls {
			if s.refusalOf(t, api, call, made.ID) == "" {
				supported++
			}
		}
		fmt.Fprintf(&b, "| `%s` | %d of %d |\n", strings.TrimPrefix(api, "api-client-go/"), supported, len(calls))
	}
	testsdk.CheckDocument(t, page, "<!-- written by the tests of conformance/daytona: calls -->\n", b.String(), *update)

	b.Reset()
	b.WriteString("| request | status | message |\n|---|---|---|\n")
	for _, r := range refusals {
		status, text := s.send(t, r.method, strings.ReplaceAll(r.path, "{id}", made.ID), r.body)
		if status < 400 || status == http.StatusInternalServerError || status == http.StatusTooManyRequests {
			t.Errorf("%s: status %d: %s", r.what, status, text)
		}
		fmt.Fprintf(&b, "| %s | %d | %s |\n", r.what, status, strings.ReplaceAll(messageOf(text), made.ID, "ID"))
	}
	testsdk.CheckDocument(t, page, "<!-- written by the tests of conformance/daytona: refusals -->\n", b.String(), *update)
}

// writeCalls writes the rows of an API. One whose calls are all refused for the same reason has one.
func (s *server) writeCalls(t *testing.T, b *strings.Builder, api, id string) {
	t.Helper()
	calls := callsOf(t, api)
	reasons := make([]string, len(calls))
	same := len(calls) > 1
	for i, call := range calls {
		reasons[i] = s.refusalOf(t, api, call, id)
		same = same && reasons[i] == reasons[0] && reasons[0] != ""
	}
	if same {
		fmt.Fprintf(b, "| all %d calls of `%s` | no: %s |\n", len(calls), filepath.Base(api), reasons[0])
		return
	}
	for i, call := range calls {
		word := "yes"
		if reasons[i] != "" {
			word = "no: " + reasons[i]
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", call, word)
	}
}

var callPattern = regexp.MustCompile(`(?s)localVarHTTPMethod += http\.Method(\w+)\n.*?localVarPath := localBasePath \+ "([^"]+)"`)

// callsOf returns the calls of a part of a Go client: "GET /sandbox/{sandboxIdOrName}".
func callsOf(t *testing.T, api string) (calls []string) {
	t.Helper()
	module, part, _ := strings.Cut(api, "/")
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/daytonaio/daytona/libs/"+module)
	dir, err := cmd.Output()
	if err != nil {
		t.Fatalf("find the source of %s: %v", module, err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "api_"+part+".go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range callPattern.FindAllSubmatch(text, -1) {
		call := strings.ToUpper(string(found[1])) + " " + string(found[2])
		if !strings.Contains(strings.Join(ownServers, "\n")+"\n", call+"\n") {
			calls = append(calls, call)
		}
	}
	if len(calls) == 0 {
		t.Fatalf("%s has no calls", api)
	}
	calls = append(calls, newerCalls[api]...)
	slices.SortFunc(calls, func(a, b string) int { return cmp.Or(cmp.Compare(pathOf(a), pathOf(b)), cmp.Compare(a, b)) })
	return calls
}

// pathOf returns the path of a call.
func pathOf(call string) string {
	_, path, _ := strings.Cut(call, " ")
	return path
}

var parameterPattern = regexp.MustCompile(`\{\w+\}`)

// refusalOf sends a call with parameters that have no effect. It returns status and message if the
// server does not have the call, and otherwise "".
func (s *server) refusalOf(t *testing.T, api, call, id string) string {
	t.Helper()
	method, path, _ := strings.Cut(call, " ")
	prefix := "/api"
	switch {
	case strings.HasPrefix(api, "toolbox-"):
		prefix = "/toolbox/" + id
	case strings.HasSuffix(api, "/toolbox"), strings.HasSuffix(path, "/resize"):
		path = strings.NewReplacer("{sandboxId}", id, "{sandboxIdOrName}", id).Replace(path)
	}
	body := "{}"
	if special, ok := bodies[call]; ok {
		body = special
	}
	status, text := s.send(t, method, prefix+parameterPattern.ReplaceAllString(path, "1"), body)
	message := messageOf(text)
	switch {
	case strings.Contains(message, "no such call"):
		return fmt.Sprintf("%d no such call", status)
	case strings.HasPrefix(message, "sandpit does not support"):
		return strconv.Itoa(status)
	case status == http.StatusNotImplemented, status == http.StatusServiceUnavailable, status == http.StatusUnprocessableEntity:
		return fmt.Sprintf("%d %s", status, message)
	case status == http.StatusUnauthorized, status == http.StatusTooManyRequests, status >= 500:
		t.Errorf("%s: status %d: %s", call, status, text)
	}
	return ""
}

// messageOf returns the message of an error.
func messageOf(text string) string {
	var problem struct{ Message string }
	if json.Unmarshal([]byte(text), &problem) != nil {
		return text
	}
	return problem.Message
}

// send sends a request of an SDK, and returns the status and the body.
func (s *server) send(tb testing.TB, method, path, body string) (int, string) {
	tb.Helper()
	header := map[string]string{"Authorization": "Bearer " + s.key, "Content-Type": "application/json"}
	status, text := testserver.Request{Method: method, URL: s.URL + path, Body: body, Header: header}.Send(tb)
	return status, string(text)
}
