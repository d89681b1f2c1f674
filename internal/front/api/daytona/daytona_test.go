package daytona_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLife takes a sandbox through its life.
func TestLife(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"name":"first","env":{"A":"b"},"labels":{"code-toolbox-language":"python","id":"7"},"target":"us","autoStopInterval":20}`)
	if made.Name != "first" || made.OrganizationID != "ann" || made.Target != "local" || made.User == "" || made.SandboxClass != "container" ||
		made.DesiredState != "started" || made.ToolboxProxyURL != r.URL+"/toolbox" || made.Env["A"] != "b" ||
		len(made.Labels) != 2 || made.Labels["code-toolbox-language"] != "python" || made.CPU != 1 || made.Memory != 1 || made.Disk != 3 ||
		made.AutoStopInterval != 20 || made.AutoArchiveInterval != 10080 || made.AutoDeleteInterval != -1 {
		t.Errorf("made %+v", made)
	}
	if b := r.is(t, "first"); b.ID != made.ID {
		t.Errorf("by name: %+v", b)
	}
	r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"name":"first"}`).want(t, http.StatusConflict, "Sandbox with name first already exists")
	path := "/sandbox/" + made.ID
	for _, step := range []struct {
		method, path string
		status       int
		text         string
	}{
		{"POST", "/start", 400, "Sandbox is not in valid state"},
		{"POST", "/archive", 400, "Sandbox is not stopped"},
		{"POST", "/recover", 400, "must be in error state"},
		{"POST", "/last-activity", 201, ""},
		{"POST", "/pause", 200, `"state":"paused"`},
		{"POST", "/pause", 400, "Sandbox is not started"},
		{"POST", "/start", 200, `"state":"started"`},
		{"POST", "/stop", 200, `"state":"stopped"`},
		{"POST", "/stop", 400, "Sandbox is not in a stoppable state"},
		{"POST", "/last-activity", 400, "Sandbox is not started"},
		{"POST", "/archive", 200, `"state":"archived"`},
		{"POST", "/archive", 400, "Sandbox is not stopped"},
		{"POST", "/start", 200, `"state":"started"`},
		{"POST", "/stop?force=true", 200, `"desiredState":"stopped"`},
		{"DELETE", "", 200, `"state":"destroyed"`},
		{"DELETE", "", 404, "not found"},
		{"GET", "", 404, "not found"},
		{"POST", "/start", 404, "not found"},
	} {
		if r.do(t, r.Ann, step.method, path+step.path, "").want(t, step.status, step.text); t.Failed() {
			t.Fatalf("%s %s", step.method, step.path)
		}
	}
	if again := r.made(t, `{"name":"first"}`); again.ID == made.ID {
		t.Error("the name leads to a deleted sandbox")
	}
}

// TestRefusals refuses what Daytona's API refuses, and what this server cannot do.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for body, want := range map[string]string{
		`{`:                                  "400 not JSON",
		`{"name":5}`:                         "400 name must be of another type",
		`{"name":"no spaces"}`:               "400 invalid name",
		`{"target":"mars"}`:                  "404 Region not found",
		`{"snapshot":"none"}`:                "404 not found",
		`{"snapshot":"a","buildInfo":{}}`:    "400 Cannot specify both",
		`{"snapshot":"a","cpu":2}`:           "400 Cannot specify Sandbox resources",
		`{"gpu":1}`:                          "400 gpu",
		`{"outboundProxyUrl":"http://x"}`:    "400 outboundProxyUrl",
		`{"linkedSandbox":"x"}`:              "400 linkedSandbox",
		`{"secrets":[{"A":"b"}]}`:            "400 secrets",
		`{"cpu":-1}`:                         "400 cpu -1",
		`{"memory":1e99}`:                    "400 memory",
		`{"autoStopInterval":-1}`:            "400 autoStopInterval",
		`{"autoDeleteInterval":-2}`:          "400 autoDeleteInterval",
		`{"ttlMinutes":-1}`:                  "400 ttlMinutes",
		`{"labels":{"sandpit.owner":"bob"}}`: "400 the server's",
		`{"volumes":[{"volumeId":"x","mountPath":"/x"}]}`:                              "404 Volume",
		`{"volumes":[{"volumeId":"x","mountPath":"/x","subpath":"../y"}]}`:             "400 subpath",
		`{"autoStopInterval":1,"autoPauseInterval":1}`:                                 "400 mutually exclusive",
		`{"autoPauseInterval":1,"autoDeleteInterval":0}`:                               "400 Ephemeral",
		`{"networkAllowList":"example.org"}`:                                           "400 range of addresses",
		`{"domainAllowList":"` + strings.Repeat("a.example,", 11) + `"}`:               "400 at most 10",
		`{"buildInfo":{"dockerfileContent":"RUN x"}}`:                                  "400 FROM",
		`{"buildInfo":{"dockerfileContent":"FROM x","contextHashes":["` + "a" + `"]}}`: "400 contextHashes: invalid hash",
	} {
		var status int
		var text string
		if _, err := fmt.Sscanf(want, "%d", &status); err != nil {
			t.Fatal(err)
		}
		_, text, _ = strings.Cut(want, " ")
		if r.do(t, r.Ann, http.MethodPost, "/sandbox", body).want(t, status, text); t.Failed() {
			t.Fatal(body)
		}
	}
	r.do(t, "", http.MethodGet, "/sandbox", "").want(t, http.StatusUnauthorized, "API key")
	r.do(t, "sp_"+strings.Repeat("0", 40), http.MethodGet, "/sandbox", "").want(t, http.StatusUnauthorized, "")
	r.do(t, r.Ann, http.MethodGet, "/nothing", "").want(t, http.StatusNotFound, "no such call")
	r.do(t, r.Ann, http.MethodGet, "/object-storage/push-access", "").want(t, http.StatusOK, `"sessionToken"`)
	r.do(t, r.Ann, http.MethodGet, "/secret", "").want(t, http.StatusNotImplemented, "does not support")
}

// TestIntervals sets each time of a sandbox's policy.
func TestIntervals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"ttlMinutes":30}`)
	if left := time.Until(made.AutoDestroyAt); left < 29*time.Minute || left > 30*time.Minute || made.AutoStopInterval != 15 {
		t.Errorf("made %+v", made)
	}
	path := "/sandbox/" + made.ID
	for _, step := range []struct {
		path, text string
		status     int
	}{
		{"/autostop/5", `"autoStopInterval":5`, 200},
		{"/autopause/5", "mutually exclusive", 400},
		{"/autostop/0", `"autoStopInterval":0`, 200},
		{"/autopause/5", `"autoPauseInterval":5`, 200},
		{"/autopause/0", `"autoPauseInterval":0`, 200},
		{"/autoarchive/60", `"autoArchiveInterval":60`, 200},
		{"/autoarchive/0", `"autoArchiveInterval":43200`, 200},
		{"/autoarchive/50000", `"autoArchiveInterval":43200`, 200},
		{"/autodelete/3", `"autoDeleteInterval":3`, 200},
		{"/autodelete/-1", `"autoDeleteInterval":-1`, 200},
		{"/autodelete/-2", "autoDeleteInterval", 400},
		{"/autostop/x", "want a number of minutes", 400},
		{"/autostop/-1", "autoStopInterval", 400},
		{"/ttl/60", `"autoDestroyAt":`, 200},
		{"/autostop/7", `"autoStopInterval":7`, 200},
		{"/autodelete/0", `"autoDeleteInterval":0`, 200},
		{"/autostop/8", `"autoStopInterval":8`, 200},
		{"/autodelete/-1", `"autoStopInterval":8`, 200},
	} {
		if r.do(t, r.Ann, http.MethodPost, path+step.path, "").want(t, step.status, step.text); t.Failed() {
			t.Fatal(step.path)
		}
	}
	if left := time.Until(r.is(t, made.ID).AutoDestroyAt); left < 59*time.Minute || left > time.Hour {
		t.Errorf("%v until it is deleted", left)
	}
	r.do(t, r.Ann, http.MethodPost, path+"/ttl/0", "").want(t, http.StatusOK, "")
	if b := r.is(t, made.ID); !b.AutoDestroyAt.IsZero() {
		t.Errorf("without a ttl %+v", b)
	}
}

// TestEphemeral deletes an ephemeral sandbox when it is stopped.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"autoDeleteInterval":0,"autoStopInterval":9}`)
	if made.AutoDeleteInterval != 0 || made.AutoStopInterval != 9 {
		t.Errorf("made %+v", made)
	}
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/archive", "").want(t, http.StatusBadRequest, "Ephemeral sandboxes cannot be archived")
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/stop", "").want(t, http.StatusOK, `"state":"destroyed"`)
	r.do(t, r.Ann, http.MethodGet, "/sandbox/"+made.ID, "").want(t, http.StatusNotFound, "not found")
}

// TestLabels replaces labels, and keeps those of the server.
func TestLabels(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"labels":{"a":"1"},"public":true}`)
	path := "/sandbox/" + made.ID
	r.do(t, r.Ann, http.MethodPut, path+"/labels", `{"labels":{"b":"2"}}`).want(t, http.StatusOK, `{"labels":{"b":"2"}}`)
	if b := r.is(t, made.ID); !b.Public || len(b.Labels) != 1 || b.Labels["b"] != "2" {
		t.Errorf("after a change %+v", b)
	}
	r.do(t, r.Ann, http.MethodPut, path+"/labels", `{"labels":{"sandpit.daytona":"{}"}}`).want(t, http.StatusBadRequest, "the server's")
	r.do(t, r.Ann, http.MethodPut, path+"/labels", `{}`).want(t, http.StatusBadRequest, "labels is missing")
	r.do(t, r.Ann, http.MethodPost, path+"/public/false", "").want(t, http.StatusOK, `"public":false`)
	r.do(t, r.Ann, http.MethodPost, path+"/public/maybe", "").want(t, http.StatusBadRequest, "true or false")
	if b := r.is(t, made.ID); b.Public || b.Labels["b"] != "2" {
		t.Errorf("after it became private %+v", b)
	}
}

// TestList selects, sorts and pages sandboxes.
func TestList(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var ids []string
	for i := range 5 {
		ids = append(ids, r.made(t, fmt.Sprintf(`{"name":"box-%d","cpu":%d,"labels":{"odd":"%d","x":"y"}}`, i, 5-i, i%2)).ID)
	}
	list := func(query string) (names []string, next string) {
		g := r.do(t, r.Ann, http.MethodGet, "/sandbox?"+query, "")
		g.want(t, http.StatusOK, "items")
		var page struct {
			Items      []box
			NextCursor *string
		}
		g.Decode(t, &page)
		for _, b := range page.Items {
			names = append(names, strings.TrimPrefix(b.Name, "box-"))
		}
		if page.NextCursor != nil {
			next = *page.NextCursor
		}
		return names, next
	}
	for query, want := range map[string]string{
		"":                             "4 3 2 1 0",
		"sort=name&order=asc":          "0 1 2 3 4",
		"sort=cpu&order=asc":           "4 3 2 1 0",
		"id=" + ids[2]:                 "2",
		"name=box-3":                   "3",
		"name=ox-3":                    "",
		"states=stopped":               "",
		"states=started,stopped":       "4 3 2 1 0",
		"states=started&states=paused": "4 3 2 1 0",
		"regionIds=eu":                 "",
		"minCpu=4&sort=name":           "1 0",
		"maxCpu=1":                     "4",
		"isPublic=true":                "",
		"createdAtAfter=2020-01-01T00:00:00.000Z": "4 3 2 1 0",
		"createdAtBefore=2020-01-01T00:00:00Z":    "",
		`labels={"odd":"1","x":"y"}&sort=name`:    "3 1",
	} {
		if names, next := list(query); strings.Join(names, " ") != want || next != "" {
			t.Errorf("%s: %v, and then %q; want %s", query, names, next, want)
		}
	}
	for _, sort := range []string{"createdAt", "name", "lastActivityAt", "cpu"} {
		var all []string
		for cursor, pages := "", 0; pages < 4; pages++ {
			names, next := list("limit=2&order=asc&sort=" + sort + "&cursor=" + cursor)
			all = append(all, names...)
			if cursor = next; next == "" {
				break
			}
		}
		if slices.Sort(all); !slices.Equal(all, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("pages by %s have %v", sort, all)
		}
	}
	for query, want := range map[string]string{
		"limit=0": "limit", "limit=201": "limit", "cursor=x": "cursor", "sort=x": "sort", "order=x": "order", "labels=x": "labels",
		"isPublic=x": "isPublic", "minCpu=x": "minCpu", "createdAtAfter=x": "createdAtAfter", `labels={"sandpit.daytona":"{}"}`: "the server's",
	} {
		r.do(t, r.Ann, http.MethodGet, "/sandbox?"+query, "").want(t, http.StatusBadRequest, want)
	}
	var page struct {
		Items                   []box
		Total, Page, TotalPages int
	}
	g := r.do(t, r.Ann, http.MethodGet, "/sandbox/paginated?page=2&limit=2&sort=name&order=asc", "")
	g.Decode(t, &page)
	if len(page.Items) != 2 || page.Items[0].Name != "box-2" || page.Total != 5 || page.Page != 2 || page.TotalPages != 3 {
		t.Errorf("page 2: %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodGet, "/sandbox/paginated?page=9", "").want(t, http.StatusOK, `"items":[]`)
}

// required are the fields without which Daytona's generated clients refuse a sandbox.
var required = []string{
	"id", "organizationId", "name", "user", "env", "labels", "public", "networkBlockAll", "target", "cpu", "gpu", "memory", "disk", "toolboxProxyUrl",
}

// TestRequired sends all required fields for every kind of response about a sandbox.
func TestRequired(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{}`).ID
	for _, call := range []string{"GET /sandbox/" + id, "POST /sandbox/" + id + "/stop", "POST /sandbox/" + id + "/autostop/1", "DELETE /sandbox/" + id} {
		method, path, _ := strings.Cut(call, " ")
		var fields map[string]json.RawMessage
		r.do(t, r.Ann, method, path, "").Decode(t, &fields)
		for _, name := range required {
			if value, ok := fields[name]; !ok || string(value) == "null" {
				t.Errorf("%s: no %s", call, name)
			}
		}
	}
}
