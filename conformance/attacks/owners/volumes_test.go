package owners_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestOneOwnerFillsVolumes has one owner write more into its volumes than it may, also into files
// that have no name any more: its sandboxes are paused, and the other owner notices nothing.
func TestOneOwnerFillsVolumes(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[manager]\nmax_volume_bytes = \"32m\"\n"})
	mounts := func(l *lab, readOnly bool) map[string]any {
		return map[string]any{"image": l.image, "mounts": []any{map[string]any{"volume": "data", "target": "/data", "read_only": readOnly}}}
	}
	for _, p := range []party{l.alice, l.bob} {
		p.must(t, http.MethodPost, "/v1/volumes", map[string]any{"name": "data"})
	}
	hogs := []string{l.alice.createWith(t, mounts(l, false)), l.alice.createWith(t, mounts(l, false))}
	reader, bobs := l.alice.createWith(t, mounts(l, true)), l.bob.createWith(t, mounts(l, false))
	for _, id := range hogs {
		l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+id+"/run", map[string]any{
			"command": "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=/data/$HOSTNAME.$i bs=1M count=16; done; sleep 1000", "timeout_seconds": 20,
		}) // ends somehow
	}
	for _, id := range hogs {
		var box struct{ State, Reason string }
		for end := time.Now().Add(callTimeout); box.State != "paused"; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a sandbox that fills a volume is %s", box.State)
			}
			l.alice.must(t, http.MethodGet, "/v1/sandboxes/"+id, nil).decode(t, &box)
		}
		if !strings.Contains(box.Reason, `volumes of owner "alice" take`) {
			t.Errorf("the reason is %q", box.Reason)
		}
	}
	for what, r := range map[string]response{
		"run":             l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hogs[0]+"/run", map[string]any{"command": "true"}),
		"resume":          l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hogs[0]+"/resume", nil),
		"sandbox":         l.alice.call(t, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": mounts(l, false)}),
		"sandbox of E2B":  l.alice.call(t, http.MethodPost, "/sandboxes", map[string]any{"templateID": l.image, "volumeMounts": []any{map[string]any{"name": "data", "path": "/mnt"}}}),
		"volume":          l.alice.call(t, http.MethodPost, "/v1/volumes", map[string]any{"name": "more"}),
		"fork":            l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hogs[0]+"/fork", map[string]any{"count": 1}),
		"stop, for start": l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hogs[1]+"/stop", nil),
		"start":           l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hogs[1]+"/start", nil),
	} {
		if ok := r.status < 300; ok != (what == "stop, for start") {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	l.alice.run(t, reader, "ls /data")
	l.bob.run(t, bobs, "echo more > /data/f")
	l.bob.createWith(t, mounts(l, false))
	for _, id := range append(hogs, reader) {
		l.alice.must(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	}
	l.alice.must(t, http.MethodDelete, "/v1/volumes/data", nil)
	l.alice.must(t, http.MethodPost, "/v1/volumes", map[string]any{"name": "data"})
	l.alice.run(t, l.alice.createWith(t, mounts(l, false)), "echo again > /data/f")
}
