package e2b_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
)

// TestRoutes has every call of E2B's API answered, in E2B's form: those that are there,
// refused ones, and unknown ones.
func TestRoutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false}`)
	for _, tc := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/sandboxes", 404},
		{"POST", "/v2/sandboxes", 404}, // no template is named
		{"GET", "/sandboxes", 200},
		{"GET", "/v2/sandboxes", 200},
		{"GET", "/sandboxes/{id}", 200},
		{"GET", "/sandboxes/{id}-client", 200},
		{"POST", "/sandboxes/{id}/connect", 200},
		{"POST", "/v2/sandboxes/{id}/connect", 200},
		{"POST", "/sandboxes/{id}/resume", 409},
		{"POST", "/sandboxes/{id}/timeout", 400},
		{"POST", "/sandboxes/{id}/refreshes", 204},
		{"PUT", "/sandboxes/{id}/network", 204},
		{"GET", "/sandboxes/{id}/metrics", 200},
		{"GET", "/sandboxes/metrics?sandbox_ids={id}", 200},
		{"GET", "/sandboxes/{id}/logs", 200},
		{"GET", "/v2/sandboxes/{id}/logs", 200},
		{"GET", "/templates", 200},
		{"GET", "/templates/aliases/base", 200},
		{"GET", "/templates/aliases/none", 404},
		{"GET", "/teams", 200},
		{"GET", "/api-keys", 403},
		{"POST", "/api-keys", 403},
		{"PATCH", "/api-keys/x", 403},
		{"DELETE", "/api-keys/x", 403},
		{"POST", "/sandboxes/{id}/fork", 201},
		{"POST", "/sandboxes/{id}/snapshots", 201},
		{"GET", "/snapshots", 200},
		{"GET", "/templates/x", 404},
		{"DELETE", "/templates/x%3Ay", 404},
		{"PATCH", "/templates/x", 404},
		{"PATCH", "/v2/templates/x", 404},
		{"GET", "/templates/x/builds/y/logs", 404},
		{"GET", "/templates/x/builds/y/status", 404},
		{"GET", "/templates/x/files/y", 404},
		{"GET", "/templates/x/tags", 404},
		{"POST", "/templates/tags", 404},
		{"DELETE", "/templates/tags", 404},
		{"GET", "/v2/templates", 200},
		{"POST", "/v2/templates/x/builds/y", 404},
		{"POST", "/v3/templates", 501}, // this server has no builder
		{"POST", "/templates", 501},
		{"GET", "/templates/x/other", 404},
		{"PUT", "/templates/files?hash=x", 401},
		{"GET", "/teams/ann/metrics", 200},
		{"GET", "/teams/x/metrics", 404},
		{"GET", "/teams/ann/metrics?start=x", 400},
		{"GET", "/teams/ann/metrics/max", 400},
		{"GET", "/teams/ann/metrics/max?metric=sandbox_start_rate", 200},
		{"GET", "/teams/x/metrics/max?metric=sandbox_start_rate", 404},
		{"GET", "/volumes", 200},
		{"POST", "/volumes", 400}, // no name is given
		{"GET", "/volumes/x", 404},
		{"DELETE", "/volumes/x", 404},
		{"GET", "/volumecontent/x/file", 501},
		{"GET", "/secrets", 501},
		{"POST", "/secrets", 501},
		{"GET", "/secrets/x", 501},
		{"POST", "/secrets/x", 501},
		{"DELETE", "/secrets/x", 501},
		{"GET", "/nodes", 403},
		{"GET", "/nodes/sandpit", 403},
		{"POST", "/nodes/sandpit", 501},
		{"POST", "/access-tokens", 501},
		{"GET", "/v2/nothing", 404},
		{"PUT", "/sandboxes", 404},
		{"POST", "/sandboxes/{id}/pause", 204},
		{"POST", "/sandboxes/{id}/pause", 409},
		{"POST", "/sandboxes/{id}/timeout", 400},
		{"POST", "/sandboxes/{id}/resume", 201},
		{"DELETE", "/sandboxes/{id}", 204},
		{"DELETE", "/sandboxes/{id}", 404},
		{"GET", "/sandboxes/{id}", 404},
		{"POST", "/sandboxes/{id}/connect", 404},
		{"GET", "/sandboxes/nonsense", 404},
	} {
		path := strings.ReplaceAll(tc.path, "{id}", id)
		if !e2b.Is(strings.SplitN(path, "?", 2)[0]) {
			t.Errorf("%s is not E2B's", path)
		}
		g := r.do(t, r.Ann, tc.method, path, "")
		if g.want(t, tc.status, ""); t.Failed() {
			t.Fatalf("%s %s", tc.method, tc.path)
		}
	}
	r.do(t, "", http.MethodGet, "/sandboxes", "").want(t, http.StatusUnauthorized, "API key")
	r.do(t, "e2b_"+strings.Repeat("0", 40), http.MethodGet, "/sandboxes", "").want(t, http.StatusUnauthorized, "not valid")
	for _, path := range []string{"/v1/sandboxes", "/v1", "/", "/sandboxesx", "/docs"} {
		if e2b.Is(path) {
			t.Errorf("%s is taken for one of E2B's", path)
		}
	}
}

// TestOthers has sandboxes of others not be there.
func TestOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false}`)
	for _, call := range []string{
		"GET /sandboxes/%s", "DELETE /sandboxes/%s", "POST /sandboxes/%s/connect", "POST /sandboxes/%s/pause", "POST /sandboxes/%s/resume",
		"POST /sandboxes/%s/fork", "POST /sandboxes/%s/snapshots", "POST /sandboxes/%s/refreshes", "PUT /sandboxes/%s/network", "GET /sandboxes/%s/metrics", "GET /sandboxes/%s/logs", "GET /v2/sandboxes/%s/logs",
	} {
		method, path, _ := strings.Cut(call, " ")
		r.do(t, r.Bob, method, fmt.Sprintf(path, id), "").want(t, http.StatusNotFound, "not found")
	}
	if g := r.do(t, r.Bob, http.MethodGet, "/v2/sandboxes", ""); g.Body != "[]" {
		t.Errorf("bob sees %s", g.Body)
	}
	if g := r.do(t, r.Bob, http.MethodGet, "/sandboxes/metrics?sandbox_ids="+id, ""); g.Body != `{"sandboxes":{}}` {
		t.Errorf("bob measures %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodGet, "/sandboxes/"+id, "").want(t, http.StatusOK, "running")
}

// TestVolumes makes a volume, has sandboxes see it, and keeps it from others.
func TestVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var made struct {
		ID    string `json:"volumeID"`
		Name  string `json:"name"`
		Token string `json:"token"`
	}
	g := r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"data"}`)
	g.want(t, http.StatusCreated, `"domain":"localhost:1"`)
	if err := json.Unmarshal([]byte(g.Body), &made); err != nil || made.Name != "data" || made.Token == "" {
		t.Fatalf("%+v, %v", made, err)
	}
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"data"}`).want(t, http.StatusConflict, "exists already")
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"../data"}`).want(t, http.StatusBadRequest, "volume")
	r.do(t, r.Ann, http.MethodGet, "/volumes/"+made.ID, "").want(t, http.StatusOK, `"token":"unsupported"`)
	if g := r.do(t, r.Ann, http.MethodGet, "/volumes", ""); g.Body != `[{"volumeID":"`+made.ID+`","name":"data"}]` {
		t.Errorf("volumes: %s", g.Body)
	}
	const mounting = `{"templateID":"base","allow_internet_access":false,"volumeMounts":[{"name":"data","path":"/mnt/data"}]}`
	r.do(t, r.Bob, http.MethodPost, "/v2/sandboxes", mounting).want(t, http.StatusNotFound, "volume data not found")
	r.do(t, r.Bob, http.MethodGet, "/volumes/"+made.ID, "").want(t, http.StatusNotFound, "not found")
	r.do(t, r.Bob, http.MethodDelete, "/volumes/"+made.ID, "").want(t, http.StatusNotFound, "not found")
	if g := r.do(t, r.Bob, http.MethodGet, "/volumes", ""); g.Body != "[]" {
		t.Errorf("bob sees %s", g.Body)
	}
	id := r.made(t, mounting)
	r.do(t, r.Ann, http.MethodGet, "/sandboxes/"+id, "").want(t, http.StatusOK, `"volumeMounts":[{"name":"data","path":"/mnt/data"}]`)
	r.do(t, r.Ann, http.MethodDelete, "/volumes/"+made.ID, "").want(t, http.StatusConflict, id)
	r.do(t, r.Ann, http.MethodDelete, "/sandboxes/"+id, "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodDelete, "/volumes/"+made.ID, "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodDelete, "/volumes/"+made.ID, "").want(t, http.StatusNotFound, "not found")
}

// TestCreate has requests become sandboxes, and those refused that cannot.
func TestCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *e2b.Options) { o.Templates = map[string]sandpit.Image{"python": "host"} })
	const offline = `"allow_internet_access":false`
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{"templateID":"base",` + offline + `}`:                                                                               {201, `"domain":"localhost:1"`},
		`{"templateID":"python:latest",` + offline + `,"unknown":[1]}`:                                                        {201, `"templateID":"python:latest"`},
		`{"templateID":"other"}`:                                                                                              {404, "available: base, python"},
		`{"templateID":"base","timeout":0}`:                                                                                   {400, "timeout 0"},
		`{"templateID":"base","timeout":-5}`:                                                                                  {400, "timeout -5"},
		`{"templateID":"base","timeout":99999999999}`:                                                                         {400, "timeout"},
		`{"templateID":"base","timeout":"secret"}`:                                                                            {400, "timeout must be of another type"},
		`{"templateID":`:                                                                                                      {400, "not JSON"},
		`{"templateID":"base","metadata":{"sandpit.e2b":"{}"}}`:                                                               {400, "the server's"},
		`{"templateID":"base","mcp":{"a":{}},` + offline + `}`:                                                                {201, "base"},
		`{"templateID":"base","network":{"maskRequestHost":"a b"}}`:                                                           {400, "maskRequestHost"},
		`{"templateID":"base","network":{"maskRequestHost":"a\r\nX: y"}}`:                                                     {400, "maskRequestHost"},
		`{"templateID":"base","network":{"maskRequestHost":"` + strings.Repeat("a", 300) + `"}}`:                              {400, "maskRequestHost"},
		`{"templateID":"base","network":{"httpsPorts":[0]}}`:                                                                  {400, "invalid port 0"},
		`{"templateID":"base","network":{"httpsPorts":[443,65536]}}`:                                                          {400, "invalid port 65536"},
		`{"templateID":"base","network":{"httpsPorts":[` + strings.Repeat("1,", 32) + `1]}}`:                                  {400, "there may be 32"},
		`{"templateID":"base","volumeMounts":[{"name":"v","path":"/v"}]}`:                                                     {404, "volume v not found"},
		`{"templateID":"base","network":{"egressProxy":{"address":"x"}}}`:                                                     {501, "egressProxy"},
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"a":"secret"}}}]}}}`:                  {403, "network.rules"},
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"a":""}}}]}}}`:                        {400, "no value"},
		`{"templateID":"base","network":{"rules":{"a.example":[{"transform":{"headers":{"a":"secret ${e2b.secrets.b}"}}}]}}}`: {501, "vault"},
		`{"templateID":"base","network":{"rules":{"a.example":[]}},` + offline + `}`:                                          {201, ""},
		`{"templateID":"base","network":{"allowOut":["192.0.2.1"]}}`:                                                          {403, "a network"},
		`{"templateID":"base","pad":"` + strings.Repeat("x", 1<<20) + `"}`:                                                    {400, "larger than"},
		`{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`:                        {400, "autoResume"},
		`{"templateID":"base","network":{"allowPublicTraffic":false},` + offline + `}`:                                        {201, `"trafficAccessToken":"traffic s`},
	} {
		g := r.do(t, r.Ann, http.MethodPost, "/v2/sandboxes", body)
		if g.want(t, want.status, want.text); strings.Contains(g.Body, "secret") {
			t.Errorf("the error repeats the request: %s", g.Body)
		}
	}
	id := r.made(t, `{"templateID":"base",`+offline+`,"autoPause":true,"autoResume":{"enabled":true},"envVars":{"A":"b"},"metadata":{"k":"v"}}`)
	found, err := r.Get(sandpit.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	if found.Lease.Action != sandpit.ActionPause || found.Spec.WorkDir != sandpit.HomeDir || found.Spec.Env["A"] != "b" || len(found.Spec.Env) != 1 ||
		found.Spec.Labels["k"] != "v" || found.Spec.Network.Online {
		t.Errorf("%+v", found)
	}
	want := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": id, "E2B_TEMPLATE_ID": "base"}
	if got := e2b.Environ(found); !maps.Equal(got, want) {
		t.Errorf("programs get %v, want %v", got, want)
	}
	if env := e2b.Environ(sandpit.Sandbox{ID: found.ID}); len(env) != 0 {
		t.Errorf("a sandbox that another API made has %v", env)
	}
	if p := e2b.Ports(found); !p.Made || p.Private || !p.Wakes {
		t.Errorf("%+v", p)
	}
	if left := time.Until(found.Lease.Deadline); left < 4*time.Minute || left > 6*time.Minute {
		t.Errorf("it ends in %v", left)
	}
}

// TestPauseIsSafe has a sandbox that is paused not be killed at its deadline, and one that is
// resumed be treated as it was before.
func TestPauseIsSafe(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false,"timeout":600}`)
	look := func() sandpit.Sandbox {
		t.Helper()
		b, err := r.Get(sandpit.ID(id))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/pause", "{}").want(t, http.StatusNoContent, "")
	if b := look(); b.State != sandpit.StatePaused || b.Lease.Action != sandpit.ActionPause {
		t.Errorf("paused: %+v", b)
	}
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/timeout", `{"timeout":5}`).want(t, http.StatusConflict, "is not running")
	r.do(t, r.Ann, http.MethodPost, "/v2/sandboxes/"+id+"/connect", `{"timeout":900}`).want(t, http.StatusCreated, "guest "+id)
	b := look()
	if left := time.Until(b.Lease.Deadline); b.State != sandpit.StateRunning || b.Lease.Action != sandpit.ActionKill || left < 10*time.Minute {
		t.Errorf("resumed: %+v", b)
	}
	before := b.Lease.Deadline
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/connect", `{"timeout":30}`).want(t, http.StatusOK, "")
	if b := look(); !b.Lease.Deadline.Equal(before) {
		t.Errorf("connect has moved the deadline from %v to %v", before, b.Lease.Deadline)
	}
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/timeout", `{"timeout":60}`).want(t, http.StatusNoContent, "")
	if left := time.Until(look().Lease.Deadline); left > time.Minute {
		t.Errorf("it ends in %v", left)
	}
}

// TestList has lists in pages, in both orders, by metadata that is encoded as clients do.
func TestList(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var ids []string
	for i := range 5 {
		ids = append(ids, r.made(t, fmt.Sprintf(`{"templateID":"base","allow_internet_access":false,"metadata":{"a b":"%%=&","n":"%d"}}`, i)))
	}
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+ids[1]+"/pause", "").want(t, http.StatusNoContent, "")
	pages := func(query string) (all []string) {
		t.Helper()
		for token := ""; ; {
			g := r.do(t, r.Ann, http.MethodGet, "/v2/sandboxes?limit=2&"+query+"&nextToken="+token, "")
			g.want(t, http.StatusOK, "")
			var page []struct {
				ID string `json:"sandboxID"`
			}
			g.Decode(t, &page)
			for _, b := range page {
				all = append(all, b.ID)
			}
			if token = g.Header.Get("X-Next-Token"); token == "" || len(all) > 10 {
				return all
			}
		}
	}
	backwards := slices.Clone(ids)
	slices.Reverse(backwards)
	twice := url.QueryEscape(url.QueryEscape(url.PathEscape("a b")) + "=" + url.QueryEscape(url.PathEscape("%=&")))
	for query, want := range map[string][]string{
		"":                        backwards,
		"order=asc":               ids,
		"state=paused":            {ids[1]},
		"state=running&order=asc": {ids[0], ids[2], ids[3], ids[4]},
		"state=running,paused":    backwards,
		"metadata=" + twice:       backwards,
		"metadata=n%3D3":          {ids[3]},
		"metadata=n%3D9":          nil,
		"template=base":           backwards,
		"template=other":          nil,
		"startedAfter=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339): nil,
	} {
		if got := pages(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"state=lost", "order=up", "limit=0", "limit=x", "nextToken=x", "startedAfter=now", "metadata=%25zz"} {
		r.do(t, r.Ann, http.MethodGet, "/v2/sandboxes?"+query, "").want(t, http.StatusBadRequest, "")
	}
}

// TestLogs has what was done to a sandbox told in both forms.
func TestLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false}`)
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/pause", "").want(t, http.StatusNoContent, "")
	type entry struct {
		Message string            `json:"message"`
		Fields  map[string]string `json:"fields"`
	}
	var logs struct {
		Logs []entry `json:"logs"`
	}
	for end := time.Now().Add(long); ; time.Sleep(20 * time.Millisecond) { // events are written beside
		r.do(t, r.Ann, http.MethodGet, "/v2/sandboxes/"+id+"/logs?direction=backward&search=pause", "").Decode(t, &logs)
		if len(logs.Logs) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no logs")
		}
	}
	if len(logs.Logs) != 1 || logs.Logs[0].Message != "pause" || logs.Logs[0].Fields["actor"] != "ann" {
		t.Errorf("%+v", logs)
	}
	var v1 struct {
		Logs []struct {
			Line string `json:"line"`
		} `json:"logs"`
	}
	r.do(t, r.Ann, http.MethodGet, "/sandboxes/"+id+"/logs?limit=1", "").Decode(t, &v1)
	var line map[string]string
	if len(v1.Logs) != 1 || json.Unmarshal([]byte(v1.Logs[0].Line), &line) != nil || line["level"] != "info" || line["message"] != "create" {
		t.Errorf("%+v", v1)
	}
	r.do(t, r.Ann, http.MethodGet, "/v2/sandboxes/"+id+"/logs?level=loud", "").want(t, http.StatusBadRequest, "level")
}

// TestMeasured has a team told of its own sandboxes, and administrators of all.
func TestMeasured(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const body = `{"templateID":"base","allow_internet_access":false}`
	id := r.made(t, body)
	r.made(t, body)
	r.do(t, r.Bob, http.MethodPost, "/v2/sandboxes", body).want(t, http.StatusCreated, "")
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/pause", "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodGet, "/teams/ann/metrics", "").want(t, http.StatusOK, `"concurrentSandboxes":1,"sandboxStartRate":0.033`)
	r.do(t, r.Ann, http.MethodGet, "/teams/ann/metrics/max?metric=concurrent_sandboxes", "").want(t, http.StatusOK, `"value":1}`)
	if g := r.do(t, r.Ann, http.MethodGet, "/teams/ann/metrics?end=5", ""); g.Body != "[]" {
		t.Errorf("what was: %s", g.Body)
	}
	r.do(t, r.Admin, http.MethodGet, "/nodes", "").want(t, http.StatusOK, `"sandboxCount":2,`)
	g := r.do(t, r.Admin, http.MethodGet, "/nodes/sandpit", "")
	if g.want(t, http.StatusOK, `"sandboxCount":2,`); strings.Contains(g.Body, id) || strings.Count(g.Body, `"sandboxID"`) != 2 {
		t.Errorf("%s", g.Body)
	}
	r.do(t, r.Admin, http.MethodGet, "/nodes/other", "").want(t, http.StatusNotFound, "")
}

// TestKeys has an administrator make a key, which is good for sandboxes and no more.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	g := r.do(t, r.Admin, http.MethodPost, "/api-keys", `{"name":"laptop"}`)
	g.want(t, http.StatusCreated, `"name":"laptop"`)
	var made struct{ ID, Key string }
	g.Decode(t, &made)
	r.do(t, made.Key, http.MethodGet, "/sandboxes", "").want(t, http.StatusOK, "[]")
	r.do(t, made.Key, http.MethodGet, "/api-keys", "").want(t, http.StatusForbidden, "administrators")
	r.do(t, r.Admin, http.MethodPatch, "/api-keys/"+made.ID, `{"name":"desktop"}`).want(t, http.StatusOK, "")
	r.do(t, r.Admin, http.MethodPatch, "/api-keys/"+made.ID, `{}`).want(t, http.StatusBadRequest, "name")
	r.do(t, r.Admin, http.MethodPatch, "/api-keys/"+made.ID, `{"name":"`+strings.Repeat("x", 300)+`"}`).want(t, http.StatusBadRequest, "name")
	r.do(t, r.Admin, http.MethodPatch, "/api-keys/other", `{"name":"x"}`).want(t, http.StatusNotFound, "")
	r.do(t, r.Admin, http.MethodGet, "/api-keys", "").want(t, http.StatusOK, `"name":"desktop"`)
	list := r.do(t, r.Admin, http.MethodGet, "/api-keys", "")
	if list.want(t, http.StatusOK, made.ID); strings.Contains(list.Body, made.Key) {
		t.Errorf("the key is shown again: %s", list.Body)
	}
	r.do(t, r.Admin, http.MethodDelete, "/api-keys/"+made.ID, "").want(t, http.StatusNoContent, "")
	r.do(t, made.Key, http.MethodGet, "/sandboxes", "").want(t, http.StatusUnauthorized, "")
	r.do(t, r.Admin, http.MethodDelete, "/api-keys/"+made.ID, "").want(t, http.StatusNotFound, "")
}
