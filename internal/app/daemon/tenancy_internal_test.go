package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestOwnersAreApart makes every request of every front end as alice, with identifiers of
// what bob has. The routes are taken from the router: a new route fails the test until
// there is a line for it in tenancyRoutes.
func TestOwnersAreApart(t *testing.T) {
	t.Parallel()
	w := newTenancy(t)
	slices.SortStableFunc(w.patterns, func(a, b string) int { // before alice's own attempts are in the audit trail
		return rankEvents(a) - rankEvents(b)
	})
	lines := tenancyRoutes()
	maps.Copy(lines, toolboxRoutes(w.patterns))
	for _, pattern := range w.patterns {
		a, known := lines[pattern]
		if !known {
			t.Errorf("route %q has no line in tenancyRoutes: add one that says how another owner is kept out", pattern)
			continue
		}
		delete(lines, pattern)
		t.Run(pattern, func(t *testing.T) { w.attack(t, pattern, a) })
	}
	for pattern := range lines {
		t.Errorf("tenancyRoutes has a line for %q, and there is no such route", pattern)
	}
	if after := w.describeVictim(t); after != w.before {
		t.Errorf("what bob has was changed.\nbefore: %s\nafter: %s", w.before, after)
	}
}

// rankEvents puts the routes of the audit trail first.
func rankEvents(pattern string) int {
	if strings.HasPrefix(pattern, "GET /v1/events") {
		return 0
	}
	return 1
}

// rule is what must become of alice's request.
type rule int

const (
	// foreign: 404, the same as for unknown identifiers.
	foreign rule = iota
	// administrators: 403, whatever the identifier.
	administrators
	// own: it succeeds and returns nothing of bob.
	own
	// reference: the body or the query names what bob has. The request fails as it does
	// with unknown identifiers.
	reference
	// unrouted: the path is answered with an error for every caller.
	unrouted
)

// attempt is how a route is attacked.
type attempt struct {
	rule rule
	// body and query may have the placeholders of the path, such as {snapshot}.
	body, query string
	// upgrade asks for a WebSocket.
	upgrade bool
}

// tenancy is a server on which bob has one of everything, and alice has nothing.
type tenancy struct {
	url      string
	client   *http.Client
	patterns []string
	alice    string // keys
	bob      string
	admin    string
	ssh      string            // the address
	ids      map[string]string // what placeholders stand for, bob's
	strange  map[string]string // the same, unknown
	secrets  []string          // must not be in any response to alice
	before   string
}

const (
	canaryName     = "bobs-canary-name"
	canaryVolume   = "bobs-canary-volume"
	canaryTemplate = "bobs-canary-template"
	canaryText     = "bobs-canary-text"
)

func newTenancy(t *testing.T, lines ...string) *tenancy {
	t.Helper()
	cfg := configured(t, append([]string{"keyless = false", "rate = 1000000", "burst = 1000000"}, lines...)...)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	s := &service{cfg: cfg, log: slog.New(slog.NewTextHandler(t.Output(), nil)), registered: registrations()}
	if err := s.openParts(t.Context()); err != nil {
		t.Fatal(errors.Join(err, s.closeParts(t.Context())))
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	started, ended := make(chan Addresses, 1), make(chan error, 1)
	go func() {
		err := s.serveUntil(ctx, Options{Out: io.Discard, Started: func(a Addresses) { started <- a }})
		ended <- errors.Join(err, s.closeParts(context.WithoutCancel(ctx)))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("end the server: %v", err)
		}
	})
	w := &tenancy{client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	select {
	case where := <-started:
		w.url, w.ssh, w.patterns = where.URL, where.SSH, s.mux.Patterns()
	case <-time.After(patience):
		t.Fatal("the server does not start")
	}
	w.alice, w.bob = w.newKey(t, s, "alice", false), w.newKey(t, s, "bob", false)
	if _, err := s.images.Import(t.Context(), busyboxRoot(t), "busybox", nil); err != nil {
		t.Fatal(err)
	}
	w.admin = w.newKey(t, s, "root", true)
	w.populate(t, w.admin)
	t.Cleanup(func() { w.request(t, w.bob, http.MethodDelete, "/v1/sandboxes/"+w.ids["sandbox"], "") })
	w.before = w.describeVictim(t)
	return w
}

func (*tenancy) newKey(t *testing.T, s *service, owner string, admin bool) string {
	t.Helper()
	name := "the key of " + owner
	if owner == "bob" {
		name = canaryName
	}
	_, secret, err := s.keys.Create(t.Context(), api.NewKey{Name: name, Owner: owner, Admin: admin})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// populate gives bob one of everything.
func (w *tenancy) populate(t *testing.T, admin string) {
	t.Helper()
	w.strange = map[string]string{
		"sandbox": string(sandpit.NewID()), "snapshot": string(sandpit.NewSnapshotID()), "template": string(sandpit.NewTemplateID()),
		"build": string(sandpit.NewBuildID()), "volume": "nobodys-volume", "volume_id": "vzzzzzzzzzzzzzzzzzzz", "image": strings.Repeat("ab", 32), "template_name": "nobodys-template",
		"command": "cmd-nobody", "session": "nobodys-session", "job": "nobodys-job", "key": "0123456789abcdef", "ssh_key": "fedcba9876543210", "hash": strings.Repeat("00", 32),
	}
	w.ids = maps.Clone(w.strange)
	box := w.must(t, w.bob, http.MethodPost, "/v1/sandboxes", `{"spec": {"name": "`+canaryName+`", "env": {"CANARY": "`+canaryText+`"}, "labels": {"canary": "`+canaryText+`"}}}`)
	w.ids["sandbox"] = field(t, box, "id")
	at := "/v1/sandboxes/" + w.ids["sandbox"]
	w.must(t, w.bob, http.MethodPut, at+"/files?path=/workspace/canary", canaryText)
	w.ids["command"] = field(t, w.must(t, w.bob, http.MethodPost, at+"/run", `{"command": "echo `+canaryText+`; sleep 3600", "detach": true}`), "command_id")
	w.ids["session"] = field(t, w.must(t, w.bob, http.MethodPost, at+"/sessions", `{"name": "`+canaryName+`"}`), "id")
	w.ids["volume_id"] = field(t, w.must(t, w.bob, http.MethodPost, "/volumes", `{"name": "`+canaryVolume+`"}`), "volumeID")
	w.ids["volume"] = canaryVolume
	w.ids["snapshot"] = field(t, w.must(t, w.bob, http.MethodPost, "/v1/snapshots", `{"sandbox": "`+w.ids["sandbox"]+`", "name": "`+canaryName+`"}`), "id")
	w.buildTemplate(t, admin)
	sshKey := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJvYnNjYW5hcnlib2JzY2FuYXJ5Ym9ic2NhbmFyeWJi " + canaryText
	w.ids["ssh_key"] = field(t, w.must(t, w.bob, http.MethodPost, "/v1/ssh-keys", `{"name": "`+canaryName+`", "public_key": "`+sshKey+`"}`), "id")
	w.secrets = []string{canaryName, canaryText}
	for name, id := range w.ids {
		if id != w.strange[name] {
			w.secrets = append(w.secrets, id)
		}
	}
}

// buildTemplate builds a private template of bob, of an image that an administrator knows.
func (w *tenancy) buildTemplate(t *testing.T, admin string) {
	t.Helper()
	built := w.must(t, w.bob, http.MethodPost, "/v1/templates", `{"name": "`+canaryTemplate+`"}`)
	var b struct {
		Template struct {
			ID string `json:"id"`
		} `json:"template"`
		Build struct {
			ID string `json:"id"`
		} `json:"build"`
	}
	if err := json.Unmarshal(built, &b); err != nil || b.Build.ID == "" {
		t.Fatalf("build: %v\n%s", err, built)
	}
	w.must(t, w.bob, http.MethodPost, "/v1/builds/"+b.Build.ID, `{"recipe": {"from": "busybox", "steps": [{"env": {"CANARY": "`+canaryText+`"}}]}}`)
	w.ids["template"], w.ids["build"], w.ids["template_name"] = b.Template.ID, b.Build.ID, canaryTemplate
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		status := field(t, w.must(t, w.bob, http.MethodGet, "/v1/builds/"+b.Build.ID, ""), "status")
		if status == string(sandpit.BuildReady) || status == string(sandpit.BuildFailed) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the build does not end")
		}
	}
	var page struct {
		Items []struct {
			ID   string `json:"id"`
			Kind string `json:"kind"`
		} `json:"items"`
	}
	if err := json.Unmarshal(w.must(t, admin, http.MethodGet, "/v1/images", ""), &page); err != nil {
		t.Fatal(err)
	}
	for _, i := range page.Items {
		if i.Kind == "template" {
			w.ids["image"] = i.ID
		}
	}
	if w.ids["image"] == w.strange["image"] {
		t.Fatal("the template has no image")
	}
}

// describeVictim returns what bob sees of his own.
func (w *tenancy) describeVictim(t *testing.T) string {
	t.Helper()
	at := "/v1/sandboxes/" + w.ids["sandbox"]
	var all []string
	for _, path := range []string{
		at + "/files?path=/workspace/canary", at + "/files/list?path=/workspace", at + "/sessions", at + "/network", at + "/ports",
		"/v1/volumes", "/v1/snapshots", "/v1/templates", "/v1/ssh-keys",
	} {
		all = append(all, string(w.must(t, w.bob, http.MethodGet, path, "")))
	}
	var box struct {
		State  string            `json:"state"`
		Labels map[string]string `json:"labels"`
		Spec   json.RawMessage   `json:"spec"`
		Lease  json.RawMessage   `json:"lease"`
	}
	if err := json.Unmarshal(w.must(t, w.bob, http.MethodGet, at, ""), &box); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %v %s %s\n%s", box.State, box.Labels, box.Spec, box.Lease, strings.Join(all, "\n"))
}

// placeholders say what a name in a pattern stands for, by the beginning of the path.
func placeholder(pattern, name string) string {
	_, path, _ := strings.Cut(pattern, " ")
	switch name {
	case "sandbox", "snapshot", "build", "template":
		return name
	case "cid":
		return "command"
	case "sid":
		return "session"
	case "jid":
		return "job"
	case "key":
		return "key"
	case "alias":
		return "template_name"
	case "hash":
		return "hash"
	case "name":
		return "volume"
	case "volume":
		return "volume_id"
	case "id":
		for prefix, kind := range map[string]string{
			"/v1/sandboxes/": "sandbox", "/sandboxes/": "sandbox", "/v2/sandboxes/": "sandbox", "/templates/": "template", "/v2/templates/": "template",
			"/volumes/": "volume_id", "/v1/images/": "image", "/v1/keys/": "key", "/v1/ssh-keys/": "ssh_key",
		} {
			if strings.HasPrefix(path, prefix) {
				return kind
			}
		}
	}
	return ""
}

// constants are placeholders whose value belongs to no owner.
var constants = map[string]string{
	"port": "8000", "tag": "default", "path": "health", "server": "s", "tool": "t", "what": "tags", "interval": "1", "public": "true",
}

var namePattern = regexp.MustCompile(`\{([a-z_]+)(\.\.\.)?\}`)

// fill puts identifiers into a text.
func fill(pattern, text string, ids map[string]string) string {
	return namePattern.ReplaceAllStringFunc(text, func(m string) string {
		name := namePattern.FindStringSubmatch(m)[1]
		if id, ok := ids[name]; ok && placeholder(pattern, name) == "" {
			return id
		}
		if kind := placeholder(pattern, name); kind != "" {
			return ids[kind]
		}
		if c, ok := constants[name]; ok {
			return c
		}
		return "x"
	})
}

// attack makes the request with bob's identifiers, and with unknown ones.
func (w *tenancy) attack(t *testing.T, pattern string, a attempt) {
	t.Helper()
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = http.MethodGet, pattern
	}
	do := func(ids map[string]string) (int, string) {
		target := fill(pattern, path, ids)
		if a.query != "" {
			target += "?" + fill("", a.query, ids)
		}
		sent := fill("", a.body, ids)
		status, body := w.send(t, tenancyCall{w.alice, method, target, sent, a.upgrade})
		w.wantNothingOfBob(t, target+sent, string(body))
		text := requestIDPattern.ReplaceAllString(string(body), "")
		for name, id := range ids {
			text = strings.ReplaceAll(text, id, "{"+name+"}")
		}
		return status, text
	}
	status, body := do(w.ids)
	strangeStatus, strangeBody := do(w.strange)
	wanted := map[rule]func() bool{
		foreign:        func() bool { return status == http.StatusNotFound },
		administrators: func() bool { return status == http.StatusForbidden },
		own:            func() bool { return status < 400 },
		reference:      func() bool { return status >= 400 && status < 500 },
		unrouted:       func() bool { return status >= 400 },
	}[a.rule]
	if !wanted() {
		t.Errorf("status %d\n%s", status, body)
	}
	if a.rule != own && (status != strangeStatus || body != strangeBody) {
		t.Errorf("bob's and unknown identifiers differ:\n%d %s\n%d %s", status, body, strangeStatus, strangeBody)
	}
}

// wantNothingOfBob complains about a response that has more of bob's than the request had.
func (w *tenancy) wantNothingOfBob(t *testing.T, sent, body string) {
	t.Helper()
	for _, secret := range w.secrets {
		if strings.Contains(body, secret) && !strings.Contains(sent, secret) {
			t.Errorf("the response contains %q, which is bob's:\n%s", secret, body)
		}
	}
}

// requestIDPattern is what differs between two equal problems.
var requestIDPattern = regexp.MustCompile(`"(request_id|requestID|trace_id)":"[^"]*",?|"timestamp":"[^"]*",?`)

// tenancyCall is a request.
type tenancyCall struct {
	key, method, path, body string
	upgrade                 bool
}

// send makes a request and reads the response, for at most a moment if it is a stream.
func (w *tenancy) send(t *testing.T, call tenancyCall) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, call.method, w.url+call.path, strings.NewReader(call.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", call.key)
	if strings.HasPrefix(call.body, "{") || strings.HasPrefix(call.body, "[") {
		req.Header.Set("Content-Type", "application/json")
	}
	if call.upgrade {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		req.Header.Set("Sec-Websocket-Version", "13")
		req.Header.Set("Sec-Websocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	}
	res, err := w.client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", call.method, call.path, err)
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		stop := time.AfterFunc(500*time.Millisecond, cancel)
		defer stop.Stop()
		text, _ := io.ReadAll(res.Body) // it is broken off
		return res.StatusCode, text
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", call.method, call.path, err)
	}
	return res.StatusCode, bytes.TrimSpace(text)
}

func (w *tenancy) request(t *testing.T, key, method, path, body string) (int, []byte) {
	t.Helper()
	return w.send(t, tenancyCall{key: key, method: method, path: path, body: body})
}

func (w *tenancy) must(t *testing.T, key, method, path, body string) []byte {
	t.Helper()
	status, text := w.request(t, key, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	return text
}

// field returns a text of a JSON object.
func field(t *testing.T, text []byte, name string) string {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	value, _ := object[name].(string)
	if value == "" {
		t.Fatalf("no %q in %s", name, text)
	}
	return value
}

// tenancyRoutes says for each route how another owner is kept out.
func tenancyRoutes() map[string]attempt {
	all := make(map[string]attempt)
	for _, part := range []map[string]attempt{
		publicRoutes(), nativeSandboxRoutes(), insideRoutes(), nativeRoutes(), e2bRoutes(), aioRoutes(), mcpRoutes(), daytonaRoutes(),
	} {
		maps.Copy(all, part)
	}
	return all
}

// repeat gives many routes the same line.
func repeat(a attempt, patterns ...string) map[string]attempt {
	lines := make(map[string]attempt, len(patterns))
	for _, p := range slices.Compact(patterns) {
		lines[p] = a
	}
	return lines
}

func merge(parts ...map[string]attempt) map[string]attempt {
	all := make(map[string]attempt)
	for _, p := range parts {
		maps.Copy(all, p)
	}
	return all
}
