package e2b_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
)

// saved is a snapshot as clients see it.
type saved struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// snapshot saves a sandbox of ann's.
func (r *rig) snapshot(tb testing.TB, id, body string) (s saved) {
	tb.Helper()
	g := r.do(tb, r.Ann, http.MethodPost, "/sandboxes/"+id+"/snapshots", body)
	if g.want(tb, http.StatusCreated, "snapshotID"); g.Status == http.StatusCreated {
		g.Decode(tb, &s)
	}
	return s
}

// TestSnapshots saves sandboxes, finds what was saved by all of its names, makes others of
// it, and removes it.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false}`)
	bare, tagged, named := r.snapshot(t, id, "{}"), r.snapshot(t, id, `{"name":"work:v1.2"}`), r.snapshot(t, id, `{"name":"ann/work"}`)
	if len(bare.Names) != 0 || !slices.Equal(tagged.Names, []string{"work:v1.2"}) || !slices.Equal(named.Names, []string{"work:default"}) {
		t.Errorf("%+v %+v %+v", bare, tagged, named)
	}
	for name, want := range map[string]string{
		bare.ID: bare.ID, bare.ID + ":default": bare.ID, "work:v1.2": tagged.ID, "ann/work:v1.2": tagged.ID, "work": named.ID,
		"work:default": named.ID, "work:latest": named.ID, "other": "", "work:v2": "", "bob/work": "",
	} {
		g := r.do(t, r.Ann, http.MethodGet, "/snapshots?name="+url.QueryEscape(name), "")
		var list []saved
		if g.Decode(t, &list); want == "" && len(list) != 0 || want != "" && (len(list) != 1 || list[0].ID != want) {
			t.Errorf("%s: %s, want %s", name, g.Body, want)
		}
		status := http.StatusCreated
		if want == "" {
			status = http.StatusNotFound
		}
		r.do(t, r.Ann, http.MethodPost, "/v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, name)).want(t, status, "")
	}
	for _, name := range []string{"a.b", "a b", ":v1", "a:", "-a", strings.Repeat("a", 64), "bob/x", bare.ID} {
		r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/snapshots", fmt.Sprintf(`{"name":%q}`, name)).want(t, http.StatusBadRequest, "")
	}
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/snapshots", `{"name":"work"}`).want(t, http.StatusConflict, "exists")

	var ids []string
	for token := ""; ; {
		g := r.do(t, r.Ann, http.MethodGet, "/snapshots?limit=2&sandboxID="+id+"&nextToken="+token, "")
		var page []saved
		g.Decode(t, &page)
		for _, s := range page {
			ids = append(ids, s.ID)
		}
		if token = g.Header.Get("X-Next-Token"); token == "" || len(ids) > 3 {
			break
		}
	}
	want := []string{bare.ID, tagged.ID, named.ID}
	if slices.Sort(want); !slices.Equal(ids, want) {
		t.Errorf("listed %v, want %v", ids, want)
	}
	for _, query := range []string{"sandboxID=" + string(sandpit.NewID()), "name=work&sandboxID=" + string(sandpit.NewID())} {
		if g := r.do(t, r.Ann, http.MethodGet, "/snapshots?"+query, ""); g.Body != "[]" {
			t.Errorf("%s: %s", query, g.Body)
		}
	}
	for _, query := range []string{"limit=0", "nextToken=x"} {
		r.do(t, r.Ann, http.MethodGet, "/snapshots?"+query, "").want(t, http.StatusBadRequest, "")
	}
	for _, name := range []string{bare.ID, "work", "work:v1.2"} { // others do not have it
		r.do(t, r.Bob, http.MethodPost, "/v2/sandboxes", fmt.Sprintf(`{"templateID":%q}`, name)).want(t, http.StatusNotFound, "not found")
		r.do(t, r.Bob, http.MethodDelete, "/templates/"+url.PathEscape(name), "").want(t, http.StatusNotFound, "")
	}
	if g := r.do(t, r.Bob, http.MethodGet, "/snapshots", ""); g.Body != "[]" {
		t.Errorf("bob sees %s", g.Body)
	}
	r.do(t, r.Ann, http.MethodDelete, "/templates/work%3Av1.2", "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodDelete, "/templates/work%3Av1.2", "").want(t, http.StatusNotFound, "")
	r.do(t, r.Ann, http.MethodDelete, "/templates/ann%2Fwork", "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodDelete, "/templates/base", "").want(t, http.StatusForbidden, "configuration")
}

// TestFork makes copies with a time of their own; each failure is reported separately.
func TestFork(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.made(t, `{"templateID":"base","allow_internet_access":false,"timeout":3600,"autoPause":true,"metadata":{"k":"v"}}`)
	g := r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/fork", `{"count":2,"timeout":600}`)
	g.want(t, http.StatusCreated, "")
	var list []struct {
		Sandbox struct {
			ID    string `json:"sandboxID"`
			Token string `json:"envdAccessToken"`
		} `json:"sandbox"`
		Error *struct{} `json:"error"`
	}
	if g.Decode(t, &list); len(list) != 2 {
		t.Fatal(g.Body)
	}
	for _, one := range list {
		if one.Error != nil || one.Sandbox.ID == id || one.Sandbox.Token != "guest "+one.Sandbox.ID {
			t.Fatalf("%+v", one)
		}
		found, err := r.Get(sandpit.ID(one.Sandbox.ID))
		if err != nil {
			t.Fatal(err)
		}
		left := time.Until(found.Lease.Deadline)
		if found.Lease.Action != sandpit.ActionPause || found.Spec.Labels["k"] != "v" || left > 10*time.Minute || left < 9*time.Minute {
			t.Errorf("%+v", found)
		}
	}
	for body, text := range map[string]string{
		`{"count":0}`: "count 0", `{"count":-1}`: "count -1", `{"count":101}`: "count 101", `{"timeout":0}`: "timeout 0", `{"count":"x"}`: "count",
	} {
		r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/fork", body).want(t, http.StatusBadRequest, text)
	}
	r.do(t, r.Ann, http.MethodDelete, "/sandboxes/"+id, "").want(t, http.StatusNoContent, "")
	r.do(t, r.Ann, http.MethodPost, "/sandboxes/"+id+"/fork", "").want(t, http.StatusNotFound, "")
}

// TestSnapshotOfHostFiles refuses a snapshot that mounts a directory of the machine to an
// owner that may not mount it. The provider knows the snapshot without the mount and
// refuses it in any case, but later.
func TestSnapshotOfHostFiles(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		dir := t.TempDir()
		r := newRig(t, func(o *e2b.Options) {
			if allowed {
				o.HostAccess.MountRoots = []string{dir}
			}
		})
		s := r.snapshot(t, r.made(t, `{"templateID":"base"}`), "{}")
		// The same snapshot, as if its sandbox had the mount.
		n, err := r.Store.Snapshots().Snapshot(t.Context(), "ann", s.ID)
		if err != nil {
			t.Fatal(err)
		}
		n.State, n.Spec.Mounts = store.SnapshotCreating, []sandpit.Mount{{Source: dir, Target: "/mnt/host"}}
		limits := store.SnapshotLimits{Count: 10}
		deleteErr := r.Store.Snapshots().DeleteSnapshot(t.Context(), n.ID)
		_, insertErr := r.Store.Snapshots().InsertSnapshot(t.Context(), n, limits)
		if err := errors.Join(deleteErr, insertErr, r.Store.Snapshots().FinishSnapshot(t.Context(), n, limits)); err != nil {
			t.Fatal(err)
		}
		status, text := http.StatusForbidden, "not in a directory that clients may mount"
		if allowed {
			status, text = http.StatusBadRequest, "has other mounts"
		}
		r.do(t, r.Ann, http.MethodPost, "/v2/sandboxes", `{"templateID":"`+s.ID+`"}`).want(t, status, text)
	}
}
