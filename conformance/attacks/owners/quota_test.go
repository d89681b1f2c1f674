package owners_test

import (
	"net/http"
	"testing"
)

// TestOneOwnerTakesAllSandboxes has one owner create as many as it can, with nothing in the
// configuration about quotas. Administrators are not bound.
func TestOneOwnerTakesAllSandboxes(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[manager]\nmax_sandboxes = 4\n"})
	spec := map[string]any{"spec": map[string]any{"image": l.image}}
	made := 0
	for range 4 {
		switch r := l.alice.call(t, http.MethodPost, "/v1/sandboxes", spec); r.status {
		case http.StatusCreated:
			made++
		case http.StatusTooManyRequests:
			var problem struct {
				Detail string `json:"detail"`
				Hint   string `json:"hint"`
			}
			r.decode(t, &problem)
			if problem.Hint == "" {
				t.Errorf("the refusal has no hint: %s", r.body)
			}
		default:
			t.Errorf("alice creates a sandbox: %d\n%s", r.status, r.body)
		}
	}
	if made != 2 {
		t.Errorf("alice has %d of 4 sandboxes, want 2", made)
	}
	id := l.bob.create(t, l.image)
	l.bob.must(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	for range 2 {
		l.admin.create(t, l.image)
	}
	for _, p := range []party{l.bob, l.admin} {
		if r := p.call(t, http.MethodPost, "/v1/sandboxes", spec); r.status != http.StatusTooManyRequests {
			t.Errorf("%s creates a fifth sandbox: %d\n%s", p.name, r.status, r.body)
		}
	}
}
