package api_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestAdmission tries to come in, in every way.
func TestAdmission(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) {
		e.Names = []string{"Sandpit.Example", "*.previews.example"}
		e.FailedRate, e.FailedBurst = 1, 1000
	})
	none := map[string]string{"X-Api-Key": ""}
	with := func(pairs ...string) map[string]string {
		h := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = pairs[i+1]
		}
		return h
	}
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	_, port, _ := strings.Cut(g.Addr().String(), ":")
	for name, tc := range map[string]struct {
		method, path string
		header       map[string]string
		status       int
		body         string
	}{
		"key":                {"GET", "/who", nil, 200, "ann"},
		"token":              {"GET", "/who", with("X-Api-Key", "", "Authorization", "Bearer "+g.key), 200, "ann"},
		"both":               {"GET", "/who", with("Authorization", "bearer  "+g.key), 200, "ann"},
		"they differ":        {"GET", "/who", with("Authorization", "Bearer e2b_0"), 401, "not valid"},
		"another scheme":     {"GET", "/who", with("X-Api-Key", "", "Authorization", "Basic "+g.key), 401, "not valid"},
		"a user inside":      {"GET", "/who", with("Authorization", basic("app:")), 200, "ann"},
		"only a user inside": {"GET", "/who", with("X-Api-Key", "", "Authorization", basic("app:")), 401, "X-Api-Key"},
		"uid and gid":        {"GET", "/who", with("Authorization", basic("1000:1000:")), 200, "ann"},
		"a user's password":  {"GET", "/who", with("Authorization", basic("app:secret")), 401, "not valid"},
		"neither inside":     {"GET", "/who", with("Authorization", basic(":")), 401, "not valid"},
		"no key":             {"GET", "/who", none, 401, "X-Api-Key"},
		"empty key":          {"GET", "/who", with("X-Api-Key", " "), 401, ""},
		"upper case":         {"GET", "/who", with("X-Api-Key", strings.ToUpper(g.key)), 401, "not valid"},
		"longer":             {"GET", "/who", with("X-Api-Key", g.key+"0"), 401, "not valid"},
		"public":             {"GET", "/public", none, 200, "no principal"},
		"public with a key":  {"GET", "/public", nil, 200, "ann"},
		"public, wrong key":  {"GET", "/public", with("X-Api-Key", "x"), 200, "no principal"},
		"public and a slash": {"GET", "/public/", none, 401, ""},
		"public prefix":      {"GET", "/below/a/b", none, 200, "no principal"},
		"prefix with a key":  {"GET", "/below/a", nil, 200, "ann"},
		"out of the prefix":  {"GET", "/below/../who", none, 404, ""},
		"prefix itself":      {"GET", "/below", none, 401, ""},
		"unknown path":       {"GET", "/nothing", nil, 404, "/nothing"},
		"unknown, no key":    {"GET", "/nothing", none, 401, ""},
		"method":             {"PUT", "/who", nil, 405, "GET"},
		"odd method":         {"BREW", "/who", nil, 405, "BREW"},
		"localhost":          {"GET", "/who", with("Host", "localhost:"+port), 200, "ann"},
		"LOCALHOST.":         {"GET", "/who", with("Host", "LOCALHOST."), 200, "ann"},
		"another loopback":   {"GET", "/who", with("Host", "127.9.9.9"), 200, "ann"},
		"version 6":          {"GET", "/who", with("Host", "[::1]:80"), 200, "ann"},
		"own name":           {"GET", "/who", with("Host", "sandpit.example:443"), 200, "ann"},
		"below a name":       {"GET", "/who", with("Host", "x.previews.example"), 200, "ann"},
		"the name itself":    {"GET", "/who", with("Host", "previews.example"), 403, "does not have the name"},
		"rebinding":          {"GET", "/who", with("Host", "evil.example"), 403, "does not have the name"},
		"rebinding, public":  {"GET", "/public", with("Host", "evil.example"), 403, "does not have the name"},
		"another address":    {"GET", "/who", with("Host", "192.0.2.1"), 403, "does not have the name"},
		"looks like one":     {"GET", "/who", with("Host", "localhost.evil.example"), 403, "does not have the name"},
		"another's name":     {"GET", "/who", with("Host", "xsandpit.example"), 403, "does not have the name"},
		"number":             {"GET", "/who", with("Host", "2130706433"), 403, "does not have the name"},
		"same origin":        {"POST", "/who", with("Origin", "http://localhost", "Host", "localhost"), 200, "ann"},
		"cross origin":       {"POST", "/who", with("Origin", "http://evil.example"), 403, "other sites"},
		"null origin":        {"POST", "/who", with("Origin", "null"), 403, "other sites"},
		"cross site":         {"POST", "/who", with("Sec-Fetch-Site", "cross-site"), 403, "other sites"},
		"same site":          {"POST", "/who", with("Sec-Fetch-Site", "same-site"), 403, "other sites"},
		"preflight":          {"OPTIONS", "/who", with("Origin", "http://evil.example", "Access-Control-Request-Method", "POST"), 405, ""},
		"dots":               {"GET", "/box/../who", nil, 404, ""},
		"dots encoded":       {"GET", "/box/%2e%2e/who", nil, 404, ""},
		"two slashes":        {"GET", "//who", nil, 404, ""},
		"slash in a name":    {"GET", "/box/a%2fb", nil, 200, "a/b"},
		"dots in a name":     {"GET", "/box/..%2fwho", nil, 404, ""},
		"half a letter":      {"GET", "/box/%ff", nil, 200, "\xff"},
		"zero":               {"GET", "/box/%00", nil, 200, "\x00"},
		"full-width slashes": {"GET", "/box/%ef%bc%8f", nil, 200, "／"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := g.ask(t, tc.method, tc.path, tc.header)
			if got.status != tc.status || !strings.Contains(got.body, tc.body) {
				t.Errorf("%s %s %v: %d %q, want %d and %q", tc.method, tc.path, tc.header, got.status, got.body, tc.status, tc.body)
			}
			if got.header.Get("Access-Control-Allow-Origin") != "" {
				t.Error("other sites may read it")
			}
			if tc.status >= 400 {
				var p wire.Problem
				if err := json.Unmarshal([]byte(got.body), &p); err != nil || p.Status != tc.status || p.RequestID == "" {
					t.Errorf("%q is no problem: %v", got.body, err)
				}
			}
			if strings.Contains(got.body, g.key) {
				t.Error("the key is in the answer")
			}
		})
	}
}

// TestKeyless checks that programs of this machine need no key, except for requests that they forward.
func TestKeyless(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) { e.Keyless = true })
	for name, tc := range map[string]struct {
		header map[string]string
		status int
		body   string
	}{
		"nothing":     {map[string]string{"X-Api-Key": ""}, 200, api.LocalOwner},
		"key":         {nil, 200, "ann"},
		"wrong key":   {map[string]string{"X-Api-Key": "x"}, 401, "not valid"},
		"passed on":   {map[string]string{"X-Api-Key": "", "X-Forwarded-For": "192.0.2.1"}, 401, "X-Api-Key"},
		"forwarded":   {map[string]string{"X-Api-Key": "", "Forwarded": "for=192.0.2.1"}, 401, "X-Api-Key"},
		"with a key":  {map[string]string{"X-Forwarded-For": "192.0.2.1"}, 200, "ann"},
		"rebinding":   {map[string]string{"X-Api-Key": "", "Host": "evil.example"}, 403, "does not have the name"},
		"via a proxy": {map[string]string{"X-Api-Key": "", "Via": "1.1 x"}, 401, "X-Api-Key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := g.ask(t, "GET", "/who", tc.header)
			if got.status != tc.status || !strings.Contains(got.body, tc.body) {
				t.Errorf("%d %q, want %d %q", got.status, got.body, tc.status, tc.body)
			}
		})
	}
}

// TestKeylessIsForOneself has another user of the machine call, which must send a key.
func TestKeylessIsForOneself(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if os.Geteuid() != 0 || err != nil {
		t.Skip("only root can be another user, and with curl")
	}
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) { e.Keyless = true })
	for uid, want := range map[uint32]string{0: api.LocalOwner + "200", 65534: "401"} {
		cmd := exec.CommandContext(t.Context(), curl, "-s", "-w", "%{http_code}", "http://"+g.Addr().String()+"/who")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), want) {
			t.Errorf("uid %d: %s, %v; want %s", uid, out, err, want)
		}
	}
}

// TestGuessing shows wrong keys until it must wait. Right ones are let in all the
// same, and the trail has no more reports than there may be.
func TestGuessing(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) { e.FailedRate, e.FailedBurst = 0.01, 5 })
	if body := g.ask(t, "GET", "/who", nil).body; body != "ann" {
		t.Fatalf("ann is %q", body)
	}
	wrong := map[string]string{"X-Api-Key": "e2b_" + strings.Repeat("0", 40)}
	for i := range 20 {
		got := g.ask(t, "GET", "/who", wrong)
		want := http.StatusUnauthorized
		if i >= 5 {
			want = http.StatusTooManyRequests
		}
		if got.status != want || want == http.StatusTooManyRequests && len(got.header.Get("Retry-After")) < 2 {
			t.Errorf("guess %d: %d %s %v, want %d", i, got.status, got.body, got.header, want)
		}
	}
	if got := g.ask(t, "GET", "/who", nil); got.body != "ann" {
		t.Errorf("the right key: %d %s", got.status, got.body)
	}
	if got := g.ask(t, "GET", "/who", map[string]string{"X-Api-Key": g.newKey(t, "bob")}); got.body != "bob" {
		t.Errorf("a right key that was not shown before: %d %s", got.status, got.body)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.reports) != 5 {
		t.Errorf("%d reports, want 5", len(g.reports))
	}
	for _, r := range g.reports {
		if r.Actor != "address 127.0.0.1" || r.Action != "log in" || sandpit.CodeOf(r.Err) != sandpit.Unauthenticated {
			t.Errorf("report %+v", r)
		}
	}
}

// TestGuessingBehindProxy checks that wrong keys count for the address that a trusted proxy names,
// and that other clients cannot name one.
func TestGuessingBehindProxy(t *testing.T) {
	t.Parallel()
	wrong := "e2b_" + strings.Repeat("0", 40)
	for name, tc := range map[string]struct {
		proxies api.Proxies
		actor   string
		second  int // the status of a wrong key of another client
	}{
		"trusted":     {api.Proxies{netip.MustParsePrefix("127.0.0.0/8")}, "address 203.0.113.5", http.StatusUnauthorized},
		"not trusted": {nil, "address 127.0.0.1", http.StatusTooManyRequests},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) {
				e.FailedRate, e.FailedBurst, e.Proxies = 0.01, 1, tc.proxies
			})
			if got := g.ask(t, "GET", "/who", map[string]string{"X-Api-Key": wrong, "X-Forwarded-For": "198.51.100.1, 203.0.113.5, 127.0.0.9"}); got.status != http.StatusUnauthorized {
				t.Errorf("the first: %d", got.status)
			}
			if got := g.ask(t, "GET", "/who", map[string]string{"X-Api-Key": wrong, "X-Forwarded-For": "203.0.113.6"}); got.status != tc.second {
				t.Errorf("of another client: %d, want %d", got.status, tc.second)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.reports) == 0 || g.reports[0].Actor != tc.actor {
				t.Errorf("reports %+v, want %s", g.reports, tc.actor)
			}
		})
	}
}

// TestRequestIDs keeps those that are well-formed.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	for sent, kept := range map[string]bool{
		"abc-123_x.y:z": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
		"two words": false, "<script>": false, "ä": false, "": false,
	} {
		got := g.ask(t, "GET", "/who", map[string]string{wire.HeaderRequestID: sent})
		id := got.header.Get(wire.HeaderRequestID)
		if kept != (id == sent) || id == "" {
			t.Errorf("sent %q, got %q", sent, id)
		}
	}
}

// TestPanic checks that the server survives a panic, that only the log has the reason, once, and that
// no incomplete response looks complete.
func TestPanic(t *testing.T) {
	t.Parallel()
	g := newGate(t, nil)
	got := g.ask(t, "GET", "/panic", nil)
	if got.status != http.StatusInternalServerError || strings.Contains(got.body, "on purpose") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := strings.Count(g.log.String(), `msg="api: request panicked" panic="on purpose"`); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, g.log)
	}
	if body := g.ask(t, "GET", "/late", nil).body; !strings.HasPrefix(body, "half of !") {
		t.Errorf("half an answer reads %q", body)
	}
	if body := g.ask(t, "GET", "/who", nil).body; body != "ann" {
		t.Errorf("afterwards: %q", body)
	}
	eventually(t, "all is observed", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.answers) == 3 })
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, want := range []api.Outcome{{Route: "GET /panic", Status: 500}, {Route: "GET /late", Status: 200}, {Route: "GET /who", Status: 200}} {
		if got := g.answers[i]; got.Route != want.Route || got.Status != want.Status || got.Bytes == 0 {
			t.Errorf("observed %+v, want %+v", got, want)
		}
	}
}

// TestRefusalsAreBounded has strangers refused again and again: the trail records
// no more than there may be, and keys are not held up by it.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	g := newGate(t, func(e *api.EdgeOptions, _ *api.ServerOptions) { e.FailedRate, e.FailedBurst = 0.01, 5 })
	for range 20 {
		if got := g.ask(t, "GET", "/who", map[string]string{"Host": "evil.example"}); got.status != http.StatusForbidden {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := g.ask(t, "GET", "/who", nil); got.body != "ann" {
		t.Errorf("a key that was not used before: %d %s", got.status, got.body)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.reports) != 5 || g.reports[0].Action != "host" {
		t.Errorf("%d reports, want 5: %+v", len(g.reports), g.reports)
	}
}
