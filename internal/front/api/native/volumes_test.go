package native_test

import (
	"net/http"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestVolumes takes a volume through its life, and keeps it from others.
func TestVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *native.Options, m *manager.Options, _ *api.EdgeOptions) { m.MaxVolumes = 3 })
	const volumes = "/v1/volumes"
	var v sandpit.Volume
	got := r.want(t, ask{method: "POST", path: volumes, key: r.ann, body: `{"name":"data"}`}, http.StatusCreated, &v)
	if v.Name != "data" || v.Owner != "ann" || v.Provider != "fake" || got.header.Get("Location") != volumes+"/data" {
		t.Errorf("made %+v at %q", v, got.header.Get("Location"))
	}
	r.want(t, ask{method: "POST", path: volumes, key: r.bob, body: `{"name":"data"}`}, http.StatusCreated, nil)
	r.want(t, ask{method: "POST", path: volumes, key: r.ann, body: `{"name":"more","provider":"fake"}`}, http.StatusCreated, nil)

	mount := `{"spec":{"mounts":[{"volume":"data","target":"/v"}]}}`
	var s sandpit.Sandbox
	r.want(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: mount}, http.StatusCreated, &s)
	v = sandpit.Volume{}
	r.want(t, ask{method: "GET", path: volumes + "/data", key: r.ann}, http.StatusOK, &v)
	if len(v.Sandboxes) != 1 || v.Sandboxes[0] != s.ID || v.Size == nil {
		t.Errorf("the volume is %+v, want sandbox %s", v, s.ID)
	}
	for name, tc := range map[string]struct {
		ask    ask
		status int
		code   sandpit.Code
		text   string
	}{
		"taken":          {ask{method: "POST", path: volumes, key: r.ann, body: `{"name":"data"}`}, 409, sandpit.AlreadyExists, "exists"},
		"name":           {ask{method: "POST", path: volumes, key: r.ann, body: `{"name":"../data"}`}, 400, sandpit.Invalid, "letters"},
		"no name":        {ask{method: "POST", path: volumes, key: r.ann, body: `{}`}, 400, sandpit.Invalid, "name"},
		"provider":       {ask{method: "POST", path: volumes, key: r.ann, body: `{"name":"x","provider":"none"}`}, 422, sandpit.Unsupported, "provider"},
		"in use":         {ask{method: "DELETE", path: volumes + "/data", key: r.ann}, 409, sandpit.Conflict, string(s.ID)},
		"unknown":        {ask{method: "GET", path: volumes + "/none", key: r.ann}, 404, sandpit.NotFound, "none"},
		"another's":      {ask{method: "GET", path: volumes + "/more", key: r.bob}, 404, sandpit.NotFound, "more"},
		"delete it":      {ask{method: "DELETE", path: volumes + "/more", key: r.bob}, 404, sandpit.NotFound, "more"},
		"as another":     {ask{method: "GET", path: volumes + "/data?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"delete as them": {ask{method: "DELETE", path: volumes + "/data?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"list theirs":    {ask{method: "GET", path: volumes + "?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"cursor":         {ask{method: "GET", path: volumes + "?cursor=x", key: r.ann}, 400, sandpit.Invalid, "cursor"},
		"mount theirs": {
			ask{method: "POST", path: "/v1/sandboxes", key: r.bob, body: `{"spec":{"mounts":[{"volume":"more","target":"/v"}]}}`}, 404, sandpit.NotFound, "more",
		},
		"mount both": {
			ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: `{"spec":{"mounts":[{"volume":"data","source":"/tmp","target":"/v"}]}}`},
			400, sandpit.Invalid, "want one of",
		},
		"mount out": {
			ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: `{"spec":{"mounts":[{"volume":"../../etc","target":"/v"}]}}`}, 400, sandpit.Invalid, "letters",
		},
		"no key": {ask{method: "GET", path: volumes}, 401, sandpit.Unauthenticated, "key"},
	} {
		t.Run(name, func(t *testing.T) { r.fails(t, tc.ask, tc.status, tc.code, tc.text) })
	}

	var page wire.Page[sandpit.Volume]
	r.want(t, ask{method: "GET", path: volumes, key: r.ann}, http.StatusOK, &page)
	if len(page.Items) != 2 || page.Next != "" {
		t.Errorf("ann's: %+v", page)
	}
	r.want(t, ask{method: "GET", path: volumes + "?limit=2", key: r.admin}, http.StatusOK, &page)
	if len(page.Items) != 2 || page.Next == "" {
		t.Errorf("of all owners, the first page: %+v", page)
	}
	next := wire.Page[sandpit.Volume]{}
	r.want(t, ask{method: "GET", path: volumes + "?limit=2&cursor=" + page.Next, key: r.admin}, http.StatusOK, &next)
	if len(next.Items) != 1 || next.Next != "" {
		t.Errorf("of all owners, the last page: %+v", next)
	}

	r.want(t, ask{method: "DELETE", path: "/v1/sandboxes/" + string(s.ID), key: r.ann}, http.StatusNoContent, nil)
	c, err := client.New(client.Options{URL: r.url, Key: r.admin})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if list, err := c.Volumes.List(t.Context(), "ann"); err != nil || len(list) != 2 {
		t.Errorf("ann's, to an administrator: %+v, %v", list, err)
	}
	if seen, err := c.Volumes.Get(t.Context(), "ann", "data"); err != nil || seen.Owner != "ann" || len(seen.Sandboxes) != 0 {
		t.Errorf("ann's volume: %+v, %v", seen, err)
	}
	if err := c.Volumes.Delete(t.Context(), "ann", "data"); err != nil {
		t.Error(err)
	}
	made, err := c.Volumes.Create(t.Context(), "own", "")
	if err != nil || made.Owner != "root" {
		t.Errorf("an administrator's own: %+v, %v", made, err)
	}
	if _, err := c.Volumes.Get(t.Context(), "", "own"); err != nil {
		t.Error(err)
	}
}

// TestPrePulls tells of images; why one is missing is for administrators.
func TestPrePulls(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(n *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		n.PrePulls = func() []wire.PrePull {
			return []wire.PrePull{{Image: "a", State: wire.PrePullReady, Tries: 1}, {Image: "b", State: wire.PrePullFailed, Tries: 10, Error: "secret host"}}
		}
	})
	for key, want := range map[string]string{r.admin: "secret host", r.ann: ""} {
		var page wire.Page[wire.PrePull]
		r.want(t, ask{method: "GET", path: "/v1/images/pre-pull", key: key}, http.StatusOK, &page)
		if len(page.Items) != 2 || page.Items[0].State != wire.PrePullReady || page.Items[1].Error != want {
			t.Errorf("got %+v, want the error %q", page.Items, want)
		}
	}
	c, err := client.New(client.Options{URL: r.url, Key: r.admin})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if list, err := c.Images.PrePulls(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("the client: %+v, %v", list, err)
	}
}
