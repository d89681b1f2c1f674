package e2b_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// TestTooLate has the cloud refuse requests for sandboxes: only the refusal of a timeout is marked as one of a deadline.
func TestTooLate(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"Timeout cannot be greater than 1 hours":                     true,
		"Template 'x' not found":                                     false,
		"invalid metadata: at most 20 keys":                          false,
		"envd timeout":                                               false,
		"secure access is not supported by templates older than 1.0": false,
	} {
		cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_, _ = w.Write([]byte("[]"))
				return
			}
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"code":400,"message":"` + message + `"}`))
		}))
		t.Cleanup(cloud.Close)
		p := newProvider(t, e2b.Options{Key: "e2b_key", APIURL: cloud.URL, SandboxURL: cloud.URL})
		_, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Expiry: sandpit.Expiry{Deadline: time.Now().Add(5 * time.Hour)}})
		if got := errors.Is(err, sandpit.ErrDeadlineTooLate); got != want || sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%q: %v, marked: %t", message, err, got)
		}
	}
}
