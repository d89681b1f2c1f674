package native_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestLife takes a sandbox through everything that can be done to it.
func TestLife(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var s sandpit.Sandbox
	body := `{"spec":{"name":"n","labels":{"a":"b"},"env":{"K":"v"}},"timeout_seconds":3600,"on_timeout":"stop","policy":{"idle_timeout_seconds":-1}}`
	g := r.want(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body}, http.StatusCreated, &s)
	if g.header.Get("Location") != "/v1/sandboxes/"+string(s.ID) {
		t.Errorf("location %q", g.header.Get("Location"))
	}
	if s.State != sandpit.StateRunning || s.Lease.Owner != "ann" || s.Provider != "fake" || s.Lease.Deadline.IsZero() || s.Spec.Env["K"] != "v" {
		t.Errorf("made %+v", s)
	}
	path := "/v1/sandboxes/" + string(s.ID)
	for _, step := range []struct {
		verb string
		want sandpit.State
	}{
		{"pause", sandpit.StatePaused},
		{"resume", sandpit.StateRunning},
		{"stop", sandpit.StateStopped},
		{"archive", sandpit.StateArchived},
		{"restore", sandpit.StateStopped},
		{"start", sandpit.StateRunning},
	} {
		var got sandpit.Sandbox
		r.want(t, ask{method: "POST", path: path + "/" + step.verb, key: r.ann}, http.StatusOK, &got)
		if got.State != step.want {
			t.Errorf("%s: %s, want %s", step.verb, got.State, step.want)
		}
	}
	var got sandpit.Sandbox
	r.want(t, ask{method: "PUT", path: path + "/lease", key: r.ann, body: `{"timeout_seconds":-1}`}, http.StatusOK, &got)
	if !got.Lease.Deadline.IsZero() || got.Lease.Owner != "ann" {
		t.Errorf("lease %+v", got.Lease)
	}
	r.want(t, ask{method: "PUT", path: path + "/lease", key: r.ann, body: `{"deadline":"2090-01-02T03:04:05Z","action":"pause"}`}, http.StatusOK, &got)
	if got.Lease.Deadline.Year() != 2090 || got.Lease.Action != sandpit.ActionPause {
		t.Errorf("lease %+v", got.Lease)
	}
	got = sandpit.Sandbox{}
	r.want(t, ask{method: "PUT", path: path + "/lease", key: r.ann, body: `{"timeout_seconds":60}`}, http.StatusOK, &got)
	if got.Lease.Action != sandpit.ActionPause || got.Next.Cause != sandpit.CauseDeadline || got.Next.Action != sandpit.ActionPause {
		t.Errorf("only the time was changed, and it has %+v, next %+v", got.Lease, got.Next)
	}
	got = sandpit.Sandbox{}
	r.want(t, ask{method: "PUT", path: path + "/policy", key: r.ann, body: `{"idle_timeout_seconds":30,"auto_delete_seconds":60}`}, http.StatusOK, &got)
	want := sandpit.Policy{IdleTimeout: 30 * time.Second, IdleAction: sandpit.ActionSuspend, AutoDelete: time.Minute}
	if got.Policy != want || got.Next.Cause != sandpit.CauseIdle || got.LastUsedAt.IsZero() || got.ChangedAt.IsZero() {
		t.Errorf("policy %+v, next %+v, last used %v", got.Policy, got.Next, got.LastUsedAt)
	}
	got = sandpit.Sandbox{}
	r.want(t, ask{method: "PUT", path: path + "/labels", key: r.ann, body: `{"labels":{"c":"d"}}`}, http.StatusOK, &got)
	if len(got.Spec.Labels) != 1 || got.Spec.Labels["c"] != "d" {
		t.Errorf("labels %v", got.Spec.Labels)
	}
	r.want(t, ask{method: "GET", path: path, key: r.ann}, http.StatusOK, &got)
	r.want(t, ask{method: "DELETE", path: path, key: r.ann}, http.StatusNoContent, nil)
	r.want(t, ask{method: "DELETE", path: path, key: r.ann}, http.StatusNoContent, nil)
	r.want(t, ask{method: "GET", path: path, key: r.ann}, http.StatusOK, &got)
	if got.State != sandpit.StateDeleted || got.Reason == "" {
		t.Errorf("deleted: %+v", got)
	}
	r.fails(t, ask{method: "POST", path: path + "/start", key: r.ann}, http.StatusGone, sandpit.Gone, "is gone")
}

// TestSameRequest sends one again.
func TestSameRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	again := ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{}`, header: map[string]string{wire.HeaderIdempotencyKey: "k"}}
	var first, second, bobs sandpit.Sandbox
	r.want(t, again, http.StatusCreated, &first)
	r.want(t, again, http.StatusCreated, &second)
	if first.ID != second.ID {
		t.Errorf("%s and %s, want one", first.ID, second.ID)
	}
	again.key = r.bob
	r.want(t, again, http.StatusCreated, &bobs)
	if bobs.ID == first.ID {
		t.Error("bob got what ann has made")
	}
	again.body = `{"spec":{"name":"other"}}`
	r.fails(t, again, http.StatusConflict, sandpit.Conflict, "another request")
}

// TestList looks for sandboxes in every way.
func TestList(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, body := range []string{`{"spec":{"labels":{"a":"1","b":"x=y"}}}`, `{"spec":{"labels":{"a":"1"}}}`, `{}`} {
		r.make(t, r.ann, body)
	}
	bobs := r.make(t, r.bob, `{"spec":{"labels":{"a":"1"}}}`)
	r.want(t, ask{method: "POST", path: "/v1/sandboxes/" + string(bobs.ID) + "/stop", key: r.bob}, http.StatusOK, nil)
	for query, want := range map[string]map[string]int{ // by key
		"":                             {r.ann: 3, r.bob: 1, r.admin: 4},
		"?label=a%3D1":                 {r.ann: 2, r.bob: 1, r.admin: 3},
		"?label=a=1&label=b=x%3Dy":     {r.ann: 1, r.bob: 0, r.admin: 1},
		"?label=a=1&label=a=2":         {r.ann: 0, r.bob: 0, r.admin: 0},
		"?state=running":               {r.ann: 3, r.bob: 0, r.admin: 3},
		"?state=running&state=stopped": {r.ann: 3, r.bob: 1, r.admin: 4},
		"?owner=ann":                   {r.ann: 3, r.admin: 3},
		"?owner=nobody":                {r.admin: 0},
	} {
		for key, n := range want {
			var page wire.Page[sandpit.Sandbox]
			r.want(t, ask{method: "GET", path: "/v1/sandboxes" + query, key: key}, http.StatusOK, &page)
			if len(page.Items) != n || page.Next != "" {
				t.Errorf("%s: %d and then %q, want %d", query, len(page.Items), page.Next, n)
			}
		}
	}
	seen, cursor := map[sandpit.ID]bool{}, ""
	for range 4 {
		var page wire.Page[sandpit.Sandbox]
		r.want(t, ask{method: "GET", path: "/v1/sandboxes?limit=1&cursor=" + cursor, key: r.admin}, http.StatusOK, &page)
		if len(page.Items) != 1 || seen[page.Items[0].ID] {
			t.Fatalf("page %+v after %v", page, seen)
		}
		seen[page.Items[0].ID], cursor = true, page.Next
	}
	if cursor != "" {
		t.Errorf("there is more after all: %q", cursor)
	}
	r.fails(t, ask{method: "GET", path: "/v1/sandboxes?owner=ann", key: r.bob}, http.StatusForbidden, sandpit.PermissionDenied, "administrators")
}

// TestOthers tries every route with a sandbox of another owner, and an unknown one: both
// must look the same.
func TestOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	s := r.make(t, r.ann, `{}`)
	unknown := sandpit.NewID()
	for _, route := range []struct{ method, path, body string }{
		{"GET", "", ""},
		{"DELETE", "", ""},
		{"GET", "/stats", ""},
		{"POST", "/stop", ""},
		{"POST", "/start", ""},
		{"POST", "/pause", ""},
		{"POST", "/resume", ""},
		{"POST", "/archive", ""},
		{"POST", "/restore", ""},
		{"PUT", "/lease", `{"timeout_seconds":60}`},
		{"PUT", "/labels", `{"labels":{}}`},
		{"PUT", "/policy", `{}`},
		{"PUT", "/name", `{"name":"x"}`},
		{"POST", "/resize", `{"cpus":2}`},
	} {
		var texts []string
		for _, id := range []sandpit.ID{s.ID, unknown} {
			p := r.fails(t, ask{method: route.method, path: "/v1/sandboxes/" + string(id) + route.path, key: r.bob, body: route.body},
				http.StatusNotFound, sandpit.NotFound, "not found")
			p.RequestID = ""
			text, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, strings.ReplaceAll(string(text), string(id), "ID"))
		}
		if texts[0] != texts[1] {
			t.Errorf("%s %s: %s for another owner's, %s for an unknown one", route.method, route.path, texts[0], texts[1])
		}
	}
	var got sandpit.Sandbox
	r.want(t, ask{method: "GET", path: "/v1/sandboxes/" + string(s.ID), key: r.ann}, http.StatusOK, &got)
	if got.State != sandpit.StateRunning || len(got.Spec.Labels) != 0 {
		t.Errorf("bob did something: %+v", got)
	}
	r.want(t, ask{method: "GET", path: "/v1/sandboxes/" + string(s.ID), key: r.admin}, http.StatusOK, &got)
}

// TestErrors is every way to ask wrongly.
func TestErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	s := r.make(t, r.ann, `{}`)
	box := "/v1/sandboxes/" + string(s.ID)
	long := strings.Repeat("x", 300)
	for name, tc := range map[string]struct {
		ask    ask
		status int
		code   sandpit.Code
		part   string
	}{
		"no key":               {ask{method: "GET", path: "/v1/sandboxes"}, 401, sandpit.Unauthenticated, "X-Api-Key"},
		"wrong key":            {ask{method: "GET", path: "/v1/sandboxes", key: "e2b_" + strings.Repeat("0", 40)}, 401, sandpit.Unauthenticated, "not valid"},
		"no such route":        {ask{method: "GET", path: "/v1/nothing", key: r.ann}, 404, sandpit.NotFound, "/v1/nothing"},
		"no such method":       {ask{method: "PATCH", path: "/v1/sandboxes", key: r.ann}, 405, sandpit.Invalid, "GET"},
		"no body":              {ask{method: "POST", path: "/v1/sandboxes", key: r.ann}, 400, sandpit.Invalid, "body is required"},
		"no JSON":              {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: "{"}, 400, sandpit.Invalid, "body"},
		"another type":         {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: "{}", header: map[string]string{"Content-Type": "text/plain"}}, 415, sandpit.Invalid, ""},
		"a list":               {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: "[]"}, 400, sandpit.Invalid, "expected object"},
		"unknown field":        {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spce":{}}`}, 400, sandpit.Invalid, "body.spce"},
		"wrong type":           {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"name":7}}`}, 400, sandpit.Invalid, "body.spec.name"},
		"wrong action":         {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"on_timeout":"explode"}`}, 400, sandpit.Invalid, "body.on_timeout"},
		"too large":            {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"name":"` + strings.Repeat("x", 1<<20) + `"}}`}, 413, sandpit.Invalid, "too large"},
		"long time":            {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"timeout_seconds":1e300}`}, 400, sandpit.Invalid, "too many"},
		"long idle":            {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"policy":{"idle_timeout_seconds":1e300}}`}, 400, sandpit.Invalid, "too many"},
		"no such image":        {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"image":"none"}}`}, 404, sandpit.NotFound, "image"},
		"no such provider":     {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"provider":"moon"}`}, 422, sandpit.Unsupported, "moon"},
		"directory":            {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"image":"/etc"}}`}, 403, sandpit.PermissionDenied, "machine"},
		"archive":              {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"image":"x.tar:latest"}}`}, 403, sandpit.PermissionDenied, "machine"},
		"relative directory":   {ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: `{"spec":{"image":"./x"}}`}, 400, sandpit.Invalid, "absolute"},
		"mount":                {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"mounts":[{"source":"/home","target":"/h"}]}}`}, 403, sandpit.PermissionDenied, "mount"},
		"relative mount":       {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"mounts":[{"source":"home","target":"/h"}]}}`}, 400, sandpit.Invalid, "absolute"},
		"administrator's":      {ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: `{"spec":{"mounts":[{"source":"/etc","target":"/h"}]}}`}, 403, sandpit.PermissionDenied, "machine itself"},
		"long key":             {ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: "{}", header: map[string]string{"Idempotency-Key": long}}, 400, sandpit.Invalid, "Idempotency-Key"},
		"own label":            {ask{method: "PUT", path: box + "/labels", key: r.ann, body: `{"labels":{"sandpit.manager":"x"}}`}, 400, sandpit.Invalid, "reserved for the manager"},
		"no limits":            {ask{method: "POST", path: box + "/resize", key: r.ann, body: `{}`}, 400, sandpit.Invalid, "without a limit"},
		"invalid limit":        {ask{method: "POST", path: box + "/resize", key: r.ann, body: `{"memory":-1}`}, 400, sandpit.Invalid, "memory"},
		"invalid name":         {ask{method: "PUT", path: box + "/name", key: r.ann, body: `{"name":"a b"}`}, 400, sandpit.Invalid, "invalid name"},
		"no labels":            {ask{method: "PUT", path: box + "/labels", key: r.ann, body: `{}`}, 400, sandpit.Invalid, "labels"},
		"idle action":          {ask{method: "PUT", path: box + "/policy", key: r.ann, body: `{"idle_action":"explode"}`}, 400, sandpit.Invalid, "idle_action"},
		"idle for ever":        {ask{method: "PUT", path: box + "/policy", key: r.ann, body: `{"idle_timeout_seconds":1e300}`}, 400, sandpit.Invalid, "too many"},
		"negative policy":      {ask{method: "PUT", path: box + "/policy", key: r.ann, body: `{"auto_stop_seconds":-1}`}, 400, sandpit.Invalid, "auto_stop_seconds"},
		"no lease":             {ask{method: "PUT", path: box + "/lease", key: r.ann, body: `{}`}, 400, sandpit.Invalid, "below zero"},
		"past":                 {ask{method: "PUT", path: box + "/lease", key: r.ann, body: `{"deadline":"2001-01-01T00:00:00Z"}`}, 400, sandpit.Invalid, "passed"},
		"not paused":           {ask{method: "POST", path: box + "/resume", key: r.ann}, 409, sandpit.Conflict, "running"},
		"not stopped":          {ask{method: "POST", path: box + "/start", key: r.ann}, 409, sandpit.Conflict, "running"},
		"limit":                {ask{method: "GET", path: "/v1/sandboxes?limit=1001", key: r.ann}, 400, sandpit.Invalid, "query.limit"},
		"no limit":             {ask{method: "GET", path: "/v1/sandboxes?limit=many", key: r.ann}, 400, sandpit.Invalid, "query.limit"},
		"cursor":               {ask{method: "GET", path: "/v1/sandboxes?cursor=%27x", key: r.ann}, 400, sandpit.Invalid, "cursor"},
		"state":                {ask{method: "GET", path: "/v1/sandboxes?state=happy", key: r.ann}, 400, sandpit.Invalid, "happy"},
		"label":                {ask{method: "GET", path: "/v1/sandboxes?label=x", key: r.ann}, 400, sandpit.Invalid, "key=value"},
		"unknown parameter":    {ask{method: "GET", path: "/v1/sandboxes?limti=1", key: r.ann}, 400, sandpit.Invalid, "limti"},
		"events after":         {ask{method: "GET", path: "/v1/events?after=-2", key: r.ann}, 400, sandpit.Invalid, "after"},
		"stream after":         {ask{method: "GET", path: "/v1/events/stream?after=-2", key: r.ann}, 400, sandpit.Invalid, "after"},
		"verify":               {ask{method: "GET", path: "/v1/events/verify", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"queue":                {ask{method: "GET", path: "/v1/queue", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"retry":                {ask{method: "POST", path: "/v1/queue/x/retry", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"drop":                 {ask{method: "DELETE", path: "/v1/queue/x", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"retry nothing":        {ask{method: "POST", path: "/v1/queue/x/retry", key: r.admin}, 404, sandpit.NotFound, "dead letter"},
		"drop nothing":         {ask{method: "DELETE", path: "/v1/queue/x", key: r.admin}, 404, sandpit.NotFound, "dead letter"},
		"keys":                 {ask{method: "GET", path: "/v1/keys", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"new key":              {ask{method: "POST", path: "/v1/keys", key: r.ann, body: `{"owner":"ann"}`}, 403, sandpit.PermissionDenied, "administrators"},
		"key gone":             {ask{method: "DELETE", path: "/v1/keys/x", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"key without an owner": {ask{method: "POST", path: "/v1/keys", key: r.admin, body: `{}`}, 400, sandpit.Invalid, "owner"},
		"key of manager":       {ask{method: "POST", path: "/v1/keys", key: r.admin, body: `{"owner":"manager"}`}, 400, sandpit.Invalid, "manager"},
		"key of an address":    {ask{method: "POST", path: "/v1/keys", key: r.admin, body: `{"owner":"address 127.0.0.1"}`}, 400, sandpit.Invalid, "owner"},
		"key too short":        {ask{method: "POST", path: "/v1/keys", key: r.admin, body: `{"owner":"x","ttl_seconds":1e-12}`}, 400, sandpit.Invalid, "too short"},
		"key unknown":          {ask{method: "DELETE", path: "/v1/keys/x", key: r.admin}, 404, sandpit.NotFound, "key"},
		"image":                {ask{method: "DELETE", path: "/v1/images/x", key: r.ann}, 403, sandpit.PermissionDenied, "administrators"},
		"image unknown":        {ask{method: "DELETE", path: "/v1/images/x", key: r.admin}, 404, sandpit.NotFound, "image"},
		"pull a directory":     {ask{method: "POST", path: "/v1/images/pull", key: r.ann, body: `{"name":"/etc"}`}, 400, sandpit.Invalid, "registry"},
		"pull nothing":         {ask{method: "POST", path: "/v1/images/pull", key: r.ann, body: `{}`}, 400, sandpit.Invalid, "name"},
		"panic":                {ask{method: "GET", path: "/v1/panic", key: r.ann}, 500, sandpit.Internal, "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := r.fails(t, tc.ask, tc.status, tc.code, tc.part)
			if strings.Contains(p.Detail, "on purpose") {
				t.Errorf("it tells of the inside: %+v", p)
			}
		})
	}
}
