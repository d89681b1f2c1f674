package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func template(owner, name string) sandpit.Template {
	return sandpit.Template{ID: sandpit.NewTemplateID(), Owner: owner, Name: name, CreatedAt: begin, UpdatedAt: begin}
}

func buildOf(t sandpit.Template, tags ...string) store.TemplateBuild {
	return store.TemplateBuild{Owner: t.Owner, TemplateBuild: sandpit.TemplateBuild{
		ID: sandpit.NewBuildID(), Template: t.ID, Status: sandpit.BuildWaiting, Tags: tags, CreatedAt: begin,
		Resources: sandpit.Resources{CPUs: 1.5}, Recipe: sandpit.Recipe{From: "x", Variables: []sandpit.Variable{{Name: "A"}}},
	}}
}

// TestTemplates keeps templates and builds, tags them, and forgets them.
func TestTemplates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ann, err := s.Templates().EnsureTemplate(ctx, template("ann", "tools"), 1)
	must(err)
	again, err := s.Templates().EnsureTemplate(ctx, template("ann", "tools"), 1)
	must(err)
	if again.ID != ann.ID {
		t.Errorf("another one of the same name: %+v", again)
	}
	_, err = s.Templates().EnsureTemplate(ctx, template("ann", "more"), 1)
	want(t, err, sandpit.Exhausted, "1 templates")
	_, err = s.Templates().EnsureTemplate(ctx, template("ann", "../x"), 9)
	want(t, err, sandpit.Invalid, "name")
	bob, err := s.Templates().EnsureTemplate(ctx, template("bob", "tools"), 1)
	must(err)

	limits := store.TemplateLimits{Bytes: 100, Pending: 1}
	b := buildOf(ann, "default", "v1")
	must(s.Templates().InsertBuild(ctx, b, limits))
	want(t, s.Templates().InsertBuild(ctx, buildOf(ann), limits), sandpit.Exhausted, "1 builds")
	want(t, s.Templates().InsertBuild(ctx, buildOf(template("ann", "gone")), store.TemplateLimits{Pending: 9}), sandpit.NotFound, "")
	want(t, s.Templates().SetTag(ctx, ann.ID, "v1", b.ID, begin), sandpit.NotFound, "ready")
	b.Status, b.StartedAt = sandpit.BuildBuilding, begin.Add(time.Second)
	must(s.Templates().UpdateBuild(ctx, b, sandpit.BuildWaiting))
	want(t, s.Templates().UpdateBuild(ctx, b, sandpit.BuildWaiting), sandpit.NotFound, "not found")

	b.Status, b.FinishedAt, b.Size, b.Image = sandpit.BuildReady, begin.Add(time.Minute), 101, "template:x"
	log := []sandpit.BuildLog{{Seq: 1, At: begin, Text: "one"}, {Seq: 2, At: begin, Text: "two", Error: true}}
	want(t, s.Templates().FinishBuild(ctx, b, log, limits), sandpit.Exhausted, "101 bytes")
	b.Size = 60
	must(s.Templates().FinishBuild(ctx, b, log, limits))
	got, err := s.Templates().Build(ctx, b.ID)
	must(err)
	if diff := cmp.Diff(b, got); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		after int64
		limit int
		want  []sandpit.BuildLog
	}{{0, 9, log}, {1, 9, log[1:]}, {0, 1, log[:1]}, {9, 9, log[2:]}, {-1, -1, log[:0]}} {
		page, err := s.Templates().BuildLog(ctx, b.ID, tc.after, tc.limit)
		must(err)
		if diff := cmp.Diff(tc.want, page); diff != "" {
			t.Errorf("log after %d: %s", tc.after, diff)
		}
	}
	big := buildOf(ann)
	must(s.Templates().InsertBuild(ctx, big, limits))
	big.Status = sandpit.BuildBuilding
	must(s.Templates().UpdateBuild(ctx, big, sandpit.BuildWaiting))
	big.Status, big.Size = sandpit.BuildReady, 41
	want(t, s.Templates().FinishBuild(ctx, big, nil, limits), sandpit.Exhausted, "101 bytes")

	must(s.Templates().SetTemplatePublic(ctx, ann.ID, true, false))
	_, err = s.Templates().SharedTemplate(ctx, "tools")
	want(t, err, sandpit.NotFound, "tools")
	must(s.Templates().SetTemplatePublic(ctx, ann.ID, false, true))
	_, err = s.Templates().SharedTemplate(ctx, "tools")
	want(t, err, sandpit.NotFound, "tools")
	must(s.Templates().SetTemplatePublic(ctx, ann.ID, true, true))
	must(s.Templates().CountSpawned(ctx, ann.ID, 3))
	must(s.Close())
	s = open(t, dir)
	found, err := s.Templates().SharedTemplate(ctx, "tools")
	must(err)
	if found.ID != ann.ID || !found.Public || !found.Shared || found.Spawned != 3 || found.Tags["v1"] != b.ID || found.Tags["default"] != b.ID {
		t.Errorf("found %+v", found)
	}
	list, err := s.Templates().ListTemplates(ctx, store.TemplateFilter{Owner: "bob", Public: true})
	must(err)
	if len(list) != 2 {
		t.Errorf("bob sees %+v", list)
	}
	if list, err = s.Templates().ListTemplates(ctx, store.TemplateFilter{Owner: "ann"}); err != nil || len(list) != 1 {
		t.Errorf("ann has %+v, %v", list, err)
	}

	must(s.Templates().DeleteTag(ctx, ann.ID, "v1"))
	want(t, s.Templates().DeleteTag(ctx, ann.ID, "v1"), sandpit.NotFound, "v1")
	want(t, s.Templates().SetTag(ctx, bob.ID, "v1", b.ID, begin), sandpit.NotFound, "no build")
	must(s.Templates().DeleteTemplate(ctx, ann.ID))
	want(t, s.Templates().DeleteTemplate(ctx, ann.ID), sandpit.NotFound, "")
	loose, err := s.Templates().ListBuilds(ctx, store.BuildFilter{Loose: true})
	must(err)
	if len(loose) != 2 {
		t.Errorf("without a tag: %+v", loose)
	}
	must(s.Templates().DeleteBuild(ctx, b.ID))
	if page, err := s.Templates().BuildLog(ctx, b.ID, 0, 9); err != nil || len(page) != 0 {
		t.Errorf("the log of none: %v, %v", page, err)
	}
}
