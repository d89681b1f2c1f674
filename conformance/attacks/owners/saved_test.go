package owners_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestSavedSandboxesOfOneOwner has one owner keep more sandboxes, and larger ones, than it
// may, stopped and paused on disk: what does not fit runs on with its files.
func TestSavedSandboxesOfOneOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[manager]\nmax_saved = 2\nmax_saved_bytes = \"64m\"\n"})
	spec := map[string]any{"image": l.image, "resources": map[string]any{"disk": 1 << 30}}
	large, second := l.alice.createWith(t, spec), l.alice.createWith(t, spec)
	for _, id := range []string{large, second} {
		if out, code := l.alice.run(t, id, "head -c 40000000 /dev/urandom > /kept && md5sum /kept > /sum"); code != 0 {
			t.Fatalf("write files: %s", out)
		}
	}
	l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+large+"/stop", nil)
	for _, op := range []string{"/stop", "/pause?disk=true", "/checkpoint"} {
		l.wantRefusedSave(t, second, op)
	}
	third, fourth := l.alice.create(t, l.image), l.alice.create(t, l.image)
	l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+third+"/stop", nil)
	l.wantRefusedSave(t, fourth, "/stop")

	bob := l.bob.create(t, l.image)
	l.bob.must(t, http.MethodPost, "/v1/sandboxes/"+bob+"/stop", nil)
	l.bob.must(t, http.MethodPost, "/v1/sandboxes/"+bob+"/start", nil)

	l.alice.must(t, http.MethodDelete, "/v1/sandboxes/"+large, nil)
	l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+second+"/stop", nil)
	l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+second+"/start", nil)
	if out, code := l.alice.run(t, second, "md5sum -c /sum"); code != 0 {
		t.Errorf("files have changed: %s", out)
	}
}

// wantRefusedSave has a sandbox of alice's be saved, which does not fit, and expects that it
// runs on.
func (l *lab) wantRefusedSave(t *testing.T, id, op string) {
	t.Helper()
	r := l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+id+op, nil)
	if r.status != http.StatusTooManyRequests || !strings.Contains(string(r.body), "quota exceeded") || !strings.Contains(string(r.body), `"hint"`) {
		t.Errorf("%s without room: %d, want 429 with a hint\n%s", op, r.status, r.body)
	}
	if out, code := l.alice.run(t, id, "test ! -e /sum || md5sum -c /sum"); code != 0 {
		t.Errorf("after %s was refused: %s", op, out)
	}
}
