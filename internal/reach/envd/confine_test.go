package envd_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// olderGuest is a guest that knows no confinement, and counts its file calls.
type olderGuest struct{ calls int }

// RoundTrip implements http.RoundTripper.
func (g *olderGuest) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/health" {
		g.calls++
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestConfineOlderGuest refuses file calls that a guest would not confine, without sending them.
func TestConfineOlderGuest(t *testing.T) {
	t.Parallel()
	g := &olderGuest{}
	c := envd.New(g, "key")
	c.Observe(sandpit.GuestObserver{Confine: func(context.Context) []string { return []string{"."} }})
	_, readErr := c.ReadFile(t.Context(), "", "/file")
	_, statErr := c.Stat(t.Context(), "", "/file")
	for what, err := range map[string]error{
		"read": readErr, "stat": statErr, "write": c.WriteFile(t.Context(), "", "/file", strings.NewReader("x"), sandpit.WriteOptions{}),
	} {
		if sandpit.CodeOf(err) != sandpit.Unsupported || !strings.Contains(sandpit.HintOf(err), "sandpit restart") {
			t.Errorf("%s: %v (%s)", what, err, sandpit.HintOf(err))
		}
	}
	if g.calls != 0 {
		t.Errorf("the guest received %d file calls", g.calls)
	}
}
