package native_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// dialed returns a client of a server.
func (r *rig) dialed(t *testing.T, key string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: r.url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestSnapshots takes a snapshot through its life, and keeps it from others.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *native.Options, m *manager.Options, _ *api.EdgeOptions) { m.MaxSnapshots = 3 })
	const snapshots, boxes = "/v1/snapshots", "/v1/sandboxes"
	var box sandpit.Sandbox
	r.want(t, ask{method: "POST", path: boxes, key: r.ann, body: `{"spec":{"env":{"TOKEN":"secret"}}}`}, http.StatusCreated, &box)
	var s sandpit.Snapshot
	save := `{"sandbox":"` + string(box.ID) + `","name":"first"}`
	got := r.want(t, ask{method: "POST", path: snapshots, key: r.ann, body: save}, http.StatusCreated, &s)
	if s.Name != "first" || s.Owner != "ann" || s.Provider != "fake" || s.Sandbox != box.ID || got.header.Get("Location") != snapshots+"/"+string(s.ID) {
		t.Errorf("made %+v at %q", s, got.header.Get("Location"))
	}
	if strings.Contains(string(got.body), "secret") {
		t.Errorf("the environment is shown: %s", got.body)
	}
	for _, name := range []string{"first", string(s.ID)} {
		seen := sandpit.Snapshot{}
		r.want(t, ask{method: "GET", path: snapshots + "/" + name, key: r.ann}, http.StatusOK, &seen)
		var made sandpit.Sandbox
		r.want(t, ask{method: "POST", path: boxes, key: r.ann, body: `{"spec":{"image":"snapshot:` + name + `"}}`}, http.StatusCreated, &made)
		if seen.ID != s.ID || made.Spec.Image != sandpit.SnapshotImage(s.ID) {
			t.Errorf("%s is %+v, of which %+v was made", name, seen, made)
		}
	}
	one := boxes + "/" + string(box.ID)
	for name, tc := range map[string]struct {
		ask    ask
		status int
		code   sandpit.Code
		text   string
	}{
		"taken":           {ask{method: "POST", path: snapshots, key: r.ann, body: save}, 409, sandpit.AlreadyExists, "exists"},
		"name":            {ask{method: "POST", path: snapshots, key: r.ann, body: strings.Replace(save, "first", "../x", 1)}, 400, sandpit.Invalid, "letters"},
		"of theirs":       {ask{method: "POST", path: snapshots, key: r.bob, body: save}, 404, sandpit.NotFound, string(box.ID)},
		"unknown":         {ask{method: "GET", path: snapshots + "/none", key: r.ann}, 404, sandpit.NotFound, "none"},
		"another's":       {ask{method: "GET", path: snapshots + "/first", key: r.bob}, 404, sandpit.NotFound, "first"},
		"by ID":           {ask{method: "GET", path: snapshots + "/" + string(s.ID), key: r.bob}, 404, sandpit.NotFound, "snap"},
		"delete it":       {ask{method: "DELETE", path: snapshots + "/" + string(s.ID), key: r.bob}, 404, sandpit.NotFound, "snap"},
		"export it":       {ask{method: "GET", path: snapshots + "/" + string(s.ID) + "/export", key: r.bob}, 404, sandpit.NotFound, "snap"},
		"as another":      {ask{method: "GET", path: snapshots + "/first?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"export as them":  {ask{method: "GET", path: snapshots + "/first/export?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"list theirs":     {ask{method: "GET", path: snapshots + "?owner=ann", key: r.bob}, 403, sandpit.PermissionDenied, "administrators"},
		"cursor":          {ask{method: "GET", path: snapshots + "?cursor=x", key: r.ann}, 400, sandpit.Invalid, "cursor"},
		"make of theirs":  {ask{method: "POST", path: boxes, key: r.bob, body: `{"spec":{"image":"snapshot:` + string(s.ID) + `"}}`}, 404, sandpit.NotFound, "snap"},
		"fork theirs":     {ask{method: "POST", path: one + "/fork", key: r.bob, body: `{}`}, 404, sandpit.NotFound, string(box.ID)},
		"many":            {ask{method: "POST", path: one + "/fork", key: r.ann, body: `{"count":101}`}, 400, sandpit.Invalid, "count"},
		"roll theirs":     {ask{method: "POST", path: one + "/rollback", key: r.bob, body: `{"snapshot":"first"}`}, 404, sandpit.NotFound, string(box.ID)},
		"roll to nothing": {ask{method: "POST", path: one + "/rollback", key: r.ann, body: `{"snapshot":"none"}`}, 404, sandpit.NotFound, "none"},
		"compare nothing": {ask{method: "GET", path: "/v1/diff", key: r.ann}, 400, sandpit.Invalid, "neither"},
		"compare odd":     {ask{method: "GET", path: "/v1/diff?to=image:x", key: r.ann}, 400, sandpit.Invalid, "want sandbox:ID"},
		"compare theirs":  {ask{method: "GET", path: "/v1/diff?to=sandbox:" + string(box.ID), key: r.bob}, 404, sandpit.NotFound, string(box.ID)},
		"theirs, saved":   {ask{method: "GET", path: "/v1/diff?to=snapshot:first", key: r.bob}, 404, sandpit.NotFound, "first"},
		"import anything": {ask{method: "POST", path: snapshots + "/import", key: r.admin, body: "no snapshot"}, 400, sandpit.Invalid, "not a snapshot"},
		"import theirs":   {ask{method: "POST", path: snapshots + "/import", key: r.ann, body: "no snapshot"}, 403, sandpit.PermissionDenied, "administrators"},
		"no key":          {ask{method: "GET", path: snapshots}, 401, sandpit.Unauthenticated, "key"},
	} {
		t.Run(name, func(t *testing.T) { r.fails(t, tc.ask, tc.status, tc.code, tc.text) })
	}
	var page wire.Page[sandpit.Snapshot]
	r.want(t, ask{method: "POST", path: snapshots, key: r.ann, body: strings.Replace(save, "first", "second", 1)}, http.StatusCreated, nil)
	r.want(t, ask{method: "GET", path: snapshots + "?limit=1", key: r.ann}, http.StatusOK, &page)
	if len(page.Items) != 1 || page.Next == "" {
		t.Errorf("the first page: %+v", page)
	}
	next := wire.Page[sandpit.Snapshot]{}
	r.want(t, ask{method: "GET", path: snapshots + "?limit=1&cursor=" + page.Next, key: r.ann}, http.StatusOK, &next)
	if len(next.Items) != 1 || next.Next != "" || next.Items[0].ID == page.Items[0].ID {
		t.Errorf("the last page: %+v", next)
	}
	r.want(t, ask{method: "GET", path: snapshots, key: r.bob}, http.StatusOK, &page)
	if len(page.Items) != 0 {
		t.Errorf("bob's: %+v", page)
	}
	r.want(t, ask{method: "DELETE", path: snapshots + "/first?owner=ann", key: r.admin}, http.StatusNoContent, nil)
}

// TestSnapshotClient does by the client what can be done with snapshots.
func TestSnapshotClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx := t.Context()
	c := r.dialed(t, r.ann)
	box, err := c.Sandboxes.Create(ctx, client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(b *client.Sandbox, text string) {
		t.Helper()
		view, _ := r.world.Look(b.ID) // to a fake guest, paths are those of the machine
		if err := os.WriteFile(filepath.Join(view.Dir, "a"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(box, "one\n")
	s, err := c.Snapshots.Create(ctx, box.ID, "before")
	if err != nil {
		t.Fatal(err)
	}
	write(box, "two\n")
	d, err := c.Sandboxes.Diff(ctx, client.DiffRequest{From: client.Side{Snapshot: "before"}, To: client.Side{Sandbox: box.ID}, Patch: true})
	if err != nil || len(d.Changes) != 1 || d.Changes[0].Kind != sandpit.DiffChanged || !strings.Contains(d.Changes[0].Patch, "-one\n+two\n") {
		t.Errorf("compare: %+v, %v", d, err)
	}
	copies, err := c.Sandboxes.Fork(ctx, box.ID, client.ForkRequest{Count: 2, Labels: map[string]string{"copy": "yes"}})
	if err != nil || len(copies) != 2 || copies[0].Spec.Labels["copy"] != "yes" {
		t.Errorf("forked %+v, %v", copies, err)
	}
	if err := c.Sandboxes.Rollback(ctx, box.ID, "before"); err != nil {
		t.Error(err)
	}
	if d, err := c.Sandboxes.Diff(ctx, client.DiffRequest{From: client.Side{Snapshot: "before"}, To: client.Side{Sandbox: box.ID}}); err != nil || len(d.Changes) != 0 {
		t.Errorf("after a rollback: %+v, %v", d, err)
	}

	var file bytes.Buffer
	if err := c.Snapshots.Export(ctx, "", "before", &file); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	bob, admin := r.dialed(t, r.bob), r.dialed(t, r.admin)
	imported, err := admin.Snapshots.Import(ctx, client.ImportRequest{Name: "mine", Owner: "bob"}, bytes.NewReader(whole))
	if err != nil || imported.Owner != "bob" || imported.ID == s.ID {
		t.Errorf("imported %+v, %v", imported, err)
	}
	cut := io.MultiReader(bytes.NewReader(whole[:len(whole)/2]), broken{})
	if _, err := admin.Snapshots.Import(ctx, client.ImportRequest{Name: "cut", Owner: "bob"}, cut); err == nil {
		t.Error("what was cut is imported")
	}
	if list, err := bob.Snapshots.List(ctx, client.SnapshotFilter{}); err != nil || len(list) != 1 {
		t.Errorf("bob has %+v, %v", list, err)
	}
	r.world.Inject(fake.Fault{Op: fake.OpExportSnapshot, Err: sandpit.Errorf(sandpit.Unavailable, "as ordered")})
	if err := c.Snapshots.Export(ctx, "", "before", io.Discard); sandpit.CodeOf(err) != sandpit.Unavailable {
		t.Errorf("an export that cannot begin: %v", err)
	}
	r.world.Inject(fake.Fault{Op: fake.OpExportSnapshot, Err: sandpit.Errorf(sandpit.Internal, "as ordered"), After: true})
	if err := c.Snapshots.Export(ctx, "", "before", io.Discard); err == nil {
		t.Error("an export that fails at its end looks whole")
	}
	if err := c.Snapshots.Delete(ctx, "", "before"); err != nil {
		t.Error(err)
	}
	if _, err := c.Snapshots.Get(ctx, "", "before"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("after its end: %v", err)
	}
}

// broken is a stream that breaks.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("it breaks") }
