package gvisor_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func snapshotOf(tb testing.TB, box sandpit.Instance) sandpit.Snapshot {
	tb.Helper()
	snap, err := box.(sandpit.Snapshotter).Snapshot(tb.Context(), sandpit.NewSnapshotID())
	if err != nil {
		tb.Fatal(err)
	}
	return snap
}

// counting starts a program that counts in memory and tells it when asked.
func counting(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	output(tb, box, `busybox mkfifo /tmp/ask /tmp/answer
(exec 3<>/tmp/ask 4<>/tmp/answer; n=0; while read x <&3; do n=$((n+1)); echo $n >&4; done) >/dev/null 2>&1 &
echo file >/tmp/file`)
}

func count(tb testing.TB, box sandpit.Instance) string {
	tb.Helper()
	return output(tb, box, "echo >/tmp/ask; read n </tmp/answer; echo $n")
}

func TestSnapshotIsCopied(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	images := map[string]sandpit.Image{"on disk": sandpit.HostImage, "in memory": etcImage(t)}
	for name, image := range images {
		t.Run(name, func(t *testing.T) {
			box := create(t, p, sandpit.Spec{Image: image, Env: map[string]string{"A": "one"}})
			counting(t, box)
			count(t, box)
			snap := snapshotOf(t, box)
			if got := count(t, box); got != "2" {
				t.Errorf("the original counts %s", got)
			}
			for range 2 {
				fork := create(t, p, sandpit.Spec{Image: sandpit.SnapshotImage(snap.ID), Env: map[string]string{"A": "two"}})
				if got := count(t, fork); got != "2" {
					t.Errorf("a copy counts %s", got)
				}
				if got := output(t, fork, "echo $A; cat /tmp/file"); got != "two\nfile" {
					t.Errorf("a copy has %q", got)
				}
				if err := fork.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := output(t, box, "echo $A"); got != "one" {
				t.Errorf("the original has %q", got)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.RemoveSnapshot(t.Context(), snap.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
	_ = strings.TrimSpace
}
