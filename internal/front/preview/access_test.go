package preview_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestPrivate refuses each visitor without credentials, or with those of something else,
// and all of them alike.
func TestPrivate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port, other := app(t, echo), app(t, echo)
	id, second := r.box(), r.box()
	good := r.token(id, port)
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		refusal := get(t, c, r.hostURL(sandpit.NewID(), port)).body // of a sandbox that there is not
		for name, tc := range map[string]struct {
			id    sandpit.ID
			port  int
			pairs []string
			query string
		}{
			"nothing":          {id: id, port: port},
			"wrong token":      {id: id, port: port, pairs: []string{"Sandpit-Preview-Token", "spv_x"}},
			"wrong query":      {id: id, port: port, query: "?sandpit_token=" + forged(good)},
			"other port":       {id: id, port: other, pairs: []string{"Sandpit-Preview-Token", good}},
			"other sandbox":    {id: second, port: port, pairs: []string{"Sandpit-Preview-Token", good}},
			"other's cookie":   {id: second, port: port, pairs: []string{"Cookie", "sandpit_preview=" + good}},
			"two tokens":       {id: id, port: port, pairs: []string{"Sandpit-Preview-Token", good, "E2b-Traffic-Access-Token", "spv_x"}},
			"key":              {id: id, port: port, pairs: []string{"X-Api-Key", r.keys[alice]}},
			"guest's token":    {id: id, port: port, pairs: []string{"X-Access-Token", good}},
			"no such sandbox":  {id: sandpit.NewID(), port: port, pairs: []string{"Sandpit-Preview-Token", good}},
			"guest by query":   {id: id, port: 49983, query: "?sandpit_token=" + good},
			"guest by nothing": {id: id, port: 49983},
		} {
			for _, base := range []string{r.hostURL(tc.id, tc.port), r.pathURL(tc.id, tc.port)} {
				got := get(t, c, base+"/"+tc.query, tc.pairs...)
				if got.status != http.StatusUnauthorized || got.body != refusal {
					t.Errorf("%s, %s: status %d: %s; want 401 and %s", name, base, got.status, got.body, refusal)
				}
			}
		}
		for _, pairs := range [][]string{
			{"Sandpit-Preview-Token", good},
			{"E2b-Traffic-Access-Token", good},
			{"Cookie", "a=b; sandpit_preview=" + good, "Sec-Fetch-Site", "none"},
			{"Cookie", "sandpit_preview=spv_other; __Host-sandpit_preview=" + good, "Sec-Fetch-Site", "same-origin"},
		} {
			get(t, c, r.hostURL(id, port)+"/x", pairs...).want(t, http.StatusOK, "GET /x "+r.host(id, port)+"\n")
			get(t, c, r.pathURL(id, port)+"/x", pairs...).want(t, http.StatusOK, "GET /x "+r.paths+"\n")
		}
	})
}

// TestVisit opens the URL that is printed, as a browser and as a program.
func TestVisit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	u, err := r.gateway.URL(r.as(alice), id, port, 10*time.Minute, "")
	if err != nil {
		t.Fatal(err)
	}
	if until := u.ExpiresAt.Sub(r.clock.Now()); until > 10*time.Minute || until < 8*time.Minute {
		t.Errorf("expires in %v", until)
	}
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		for _, tc := range []struct{ target, path, cookiePath string }{
			{u.URL, "/", "/"}, {u.PathURL, parse(t, u.PathURL).Path, parse(t, u.PathURL).Path},
		} {
			// A program is answered at once.
			if got := get(t, c, tc.target+"&a=%20b;c"); got.status != http.StatusOK || !strings.Contains(got.body, "GET /?a=%20b;c ") || len(got.header["Set-Cookie"]) > 0 {
				t.Errorf("%d %v\n%s", got.status, got.header, got.body)
			}
			visit := get(t, c, tc.target+"&a=%20b", "Sec-Fetch-Mode", "navigate")
			if visit.status != http.StatusSeeOther || visit.header.Get("Location") != tc.path+"?a=%20b" || visit.header.Get("Referrer-Policy") != "strict-origin-when-cross-origin" {
				t.Errorf("%d %v", visit.status, visit.header)
			}
			cookie := visit.cookieOf(t)
			if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" || cookie.Path != tc.cookiePath ||
				cookie.Value != u.Token || !cookie.Expires.Equal(u.ExpiresAt) {
				t.Errorf("cookie: %+v", cookie)
			}
			clean, _, _ := strings.Cut(tc.target, "?")
			got := get(t, c, clean, "Cookie", "mine=1; "+cookie.Name+"="+cookie.Value+"; other=2", "Sec-Fetch-Site", "none")
			got.want(t, http.StatusOK, "GET / ")
			if cookies := got.seen("Cookie"); !slices.Equal(cookies, []string{"mine=1; other=2"}) {
				t.Errorf("cookies: %q", cookies)
			}
		}
		// It must not lead anywhere else.
		for path, want := range map[string]string{"//evil.example/x": "/evil.example/x", "//evil.example/%2e%2e//evil.example/": "/evil.example/", "/a%2fb/..%2f": "/a%2fb/..%2f"} {
			got := get(t, c, r.hostURL(id, port)+path+"?sandpit_token="+u.Token, "Accept", "text/html")
			if at := got.header.Get("Location"); got.status != http.StatusSeeOther || at != want {
				t.Errorf("%s: %d to %q, want %q", path, got.status, at, want)
			}
		}
	})
	r.clock.advance(11 * time.Minute)
	c := r.client(false)
	get(t, c, u.URL).want(t, http.StatusUnauthorized, "private")
	get(t, c, r.hostURL(id, port), "Cookie", "sandpit_preview="+u.Token, "Sec-Fetch-Site", "none").want(t, http.StatusUnauthorized, "private")
	get(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", u.Token).want(t, http.StatusUnauthorized, "private")
}

// TestPublic shows a public port to every visitor, and no other, also after a restart.
func TestPublic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port, other := app(t, echo), app(t, echo)
	id := r.box()
	token := r.token(id, other)
	r.public(id, port)
	c := r.client(false)
	check := func(status int) {
		t.Helper()
		get(t, c, r.hostURL(id, port)).want(t, status, "")
		get(t, c, r.pathURL(id, port)+"/").want(t, status, "")
		get(t, c, "http://"+r.main, "E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", strconv.Itoa(port)).want(t, status, "")
		get(t, c, r.hostURL(id, other)).want(t, http.StatusUnauthorized, "")
	}
	check(http.StatusOK)
	if u, err := r.gateway.URL(r.as(alice), id, port, 0, ""); err != nil || u.Token != "" || !u.Public || strings.Contains(u.URL, "?") || !u.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", u, err)
	}
	if list := r.gateway.Public(id); !slices.Equal(list, []int{port}) {
		t.Errorf("public: %v", list)
	}
	if err := r.gateway.SetPublic(r.as(alice), id, port, false); err != nil {
		t.Fatal(err)
	}
	check(http.StatusUnauthorized)
	// What was taken back stays so, what was not stays good.
	before := r.token(id, port)
	get(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", before).want(t, http.StatusOK, "")
	if err := r.gateway.Revoke(r.as(alice), id, port); err != nil {
		t.Fatal(err)
	}
	get(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", before).want(t, http.StatusUnauthorized, "")
	get(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", r.token(id, port)).want(t, http.StatusOK, "")
	address, stop := listen(t, r.reopen().Handler(http.NotFoundHandler()))
	defer stop()
	at := "http://" + strings.Replace(r.host(id, port), ":"+portOf(r.main), ":"+portOf(address), 1)
	get(t, c, at, "Sandpit-Preview-Token", before).want(t, http.StatusUnauthorized, "")
	get(t, c, strings.Replace(at, strconv.Itoa(port)+"-", strconv.Itoa(other)+"-", 1), "Sandpit-Preview-Token", token).want(t, http.StatusOK, "")
	if info, err := os.Stat(filepath.Join(r.dir, "preview.key")); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 {
		t.Errorf("key: %v, %v", info, err)
	}
}

// TestHeaders has programs name a port by headers, with a key or a token.
func TestHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "text/html")
		echo(w, req)
	})
	id := r.box()
	name := []string{"E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", strconv.Itoa(port)}
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		at := "http://" + r.main + "/v1/sandboxes?x=1"
		for _, pairs := range [][]string{
			{"X-Api-Key", r.keys[alice]}, {"Authorization", "Bearer " + r.keys[alice]}, {"Sandpit-Preview-Token", r.token(id, port)},
		} {
			got := get(t, c, at, append(pairs, name...)...)
			got.want(t, http.StatusOK, "GET /v1/sandboxes?x=1 ")
			if strings.Contains(got.body, pairs[1]) || strings.Contains(got.body, string(id)) {
				t.Errorf("the sandbox sees its viewer:\n%s", got.body)
			}
			// On the API's own origin nothing of a sandbox comes to life.
			if h := got.header; h.Get("Set-Cookie") != "" || h.Get("Access-Control-Allow-Origin") != "" || h.Get("Content-Security-Policy") != "default-src 'none'; sandbox" {
				t.Errorf("%v", h)
			}
		}
		get(t, c, at, name...).want(t, http.StatusUnauthorized, "needs an API key")
		get(t, c, at, append([]string{"X-Api-Key", r.keys[bob]}, name...)...).want(t, http.StatusNotFound, "not found")
		get(t, c, at, append([]string{"Cookie", "sandpit_preview=" + r.token(id, port)}, name...)...).want(t, http.StatusUnauthorized, "")
		get(t, c, at+"&sandpit_token="+r.token(id, port), name...).want(t, http.StatusUnauthorized, "")
		get(t, c, at, append([]string{"X-Api-Key", r.keys[alice], "E2b-Sandbox-Port", "99"}, name...)...).want(t, http.StatusBadRequest, "once")
		get(t, c, at, "X-Api-Key", r.keys[alice], "E2b-Sandbox-Id", "../x", "E2b-Sandbox-Port", "80").want(t, http.StatusBadRequest, "sandbox id")
		get(t, c, at, "X-Api-Key", r.keys[alice], "E2b-Sandbox-Id", string(id)).want(t, http.StatusBadRequest, "E2b-Sandbox-Port")
		// The guest's own protocol, with its owner's key only.
		guest := []string{"E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", "49983"}
		get(t, c, "http://"+r.main+"/health", append([]string{"X-Api-Key", r.keys[alice]}, guest...)...).want(t, http.StatusNoContent, "")
		get(t, c, "http://"+r.main+"/health", append([]string{"X-Api-Key", r.keys[bob]}, guest...)...).want(t, http.StatusNotFound, "")
		get(t, c, "http://"+r.main+"/health", guest...).want(t, http.StatusUnauthorized, "")
		// A page of another site.
		req := request(t, http.MethodPost, at, strings.NewReader("x"), append([]string{"X-Api-Key", r.keys[alice], "Origin", "http://evil.example"}, name...)...)
		send(t, c, req).want(t, http.StatusForbidden, "other sites")
		get(t, c, at, append([]string{"X-Api-Key", r.keys[alice], "Host", "evil.example"}, name...)...).want(t, http.StatusForbidden, "does not have the name")
	})
}

// TestOwners has the API's calls fail for others' sandboxes as for those there are not.
func TestOwners(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.box()
	for name, do := range map[string]func() error{
		"URL":    func() error { _, err := r.gateway.URL(r.as(bob), id, 80, 0, ""); return err },
		"public": func() error { return r.gateway.SetPublic(r.as(bob), id, 80, true) },
		"revoke": func() error { return r.gateway.Revoke(r.as(bob), id, 80) },
	} {
		if err := do(); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tc := range map[string]struct {
		do   func() error
		want sandpit.Code
	}{
		"guest's port":        {func() error { return r.gateway.SetPublic(r.as(alice), id, 49983, true) }, sandpit.PermissionDenied},
		"URL of guest's port": {func() error { _, err := r.gateway.URL(r.as(alice), id, 49983, 0, ""); return err }, sandpit.PermissionDenied},
		"port":                {func() error { return r.gateway.SetPublic(r.as(alice), id, 70000, true) }, sandpit.Invalid},
		"too long":            {func() error { _, err := r.gateway.URL(r.as(alice), id, 80, 31*24*time.Hour, ""); return err }, sandpit.Invalid},
	} {
		if err := tc.do(); sandpit.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if err := r.manager.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := r.gateway.URL(r.as(alice), id, 80, 0, ""); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("URL of a sandbox that is gone: %v", err)
	}
}

// TestWhy has viewers told why they see nothing, as a page or as a problem.
func TestWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	tokens := map[int]string{port: r.token(id, port), closedPort: r.token(id, closedPort)}
	c := r.client(false)
	why := func(port, status int, headline, detail string) {
		t.Helper()
		token := tokens[port]
		at := r.hostURL(id, port)
		problem := get(t, c, at, "Sandpit-Preview-Token", token)
		problem.want(t, status, detail)
		if kind := problem.header.Get("Content-Type"); kind != "application/problem+json" {
			t.Errorf("type %s", kind)
		}
		shown := get(t, c, at, "Sandpit-Preview-Token", token, "Accept", "text/html,*/*;q=0.8")
		shown.want(t, status, "<h1>"+headline+"</h1>")
		if h := shown.header; h.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%v", h)
		}
	}
	why(closedPort, http.StatusBadGateway, "Nothing answers at this port", "nothing listens at port")
	if err := r.manager.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	why(port, http.StatusConflict, "This sandbox does not run", "is paused")
	if err := r.manager.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	why(port, http.StatusGone, "This sandbox is gone", "killed by alice")
	tokens[port] = "spv_wrong"
	why(port, http.StatusUnauthorized, "This preview is private", "this preview is private")
}

// closedPort is a port at which no program listens.
const closedPort = 1
