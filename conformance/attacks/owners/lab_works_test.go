package owners_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestLab shows that the lab's parties can do what the attacks build on: without it an
// attack that fails for a wrong reason would look like one that was refused.
func TestLab(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	id := l.bob.create(t, l.image)
	if out, code := l.bob.run(t, id, "echo $((6*7))"); code != 0 || strings.TrimSpace(out) != "42" {
		t.Errorf("bob's command: %q, exit status %d; want 42, 0", out, code)
	}
	if r := l.alice.call(t, http.MethodGet, "/v1/sandboxes/"+id, nil); r.status != http.StatusNotFound {
		t.Errorf("alice gets bob's sandbox: %d, want 404\n%s", r.status, r.body)
	}
	l.admin.must(t, http.MethodGet, "/v1/sandboxes/"+id, nil)
}
