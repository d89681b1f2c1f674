package sandpit_test

import (
	"errors"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestSnapshotID(t *testing.T) {
	id := sandpit.NewSnapshotID()
	if err := id.Validate(); err != nil {
		t.Error(err)
	}
	if other := sandpit.NewSnapshotID(); other == id {
		t.Errorf("%s twice", id)
	}
	for _, bad := range []sandpit.SnapshotID{"", "snap", "../etc", "snap/aaaaaaaaaaaaaaa", "snapAAAAAAAAAAAAAAAA", id + "a", id[:19]} {
		if err := bad.Validate(); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%q: %v, want invalid", bad, err)
		}
	}
}

func TestSnapshotImage(t *testing.T) {
	id := sandpit.NewSnapshotID()
	if got, ok := sandpit.SnapshotImage(id).Snapshot(); got != id || !ok {
		t.Errorf("got %q, %v, want %q", got, ok, id)
	}
	for _, other := range []sandpit.Image{"", sandpit.HostImage, "alpine:3.20", sandpit.Image(id)} {
		if got, ok := other.Snapshot(); ok {
			t.Errorf("image %q is snapshot %q", other, got)
		}
	}
}

func TestCheckSnapshotName(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"a": true, "before-upgrade": true, "v1.2_x": true, "snapshot": true,
		"": false, ".a": false, "a b": false, "../x": false, "a/b": false, "snap:x": false,
		string(sandpit.NewSnapshotID()): false,
	} {
		if err := sandpit.CheckSnapshotName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}
