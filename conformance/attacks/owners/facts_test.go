package owners_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestFactsOfOthers asks the server what it says of others and of its machine.
func TestFactsOfOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{environ: []string{"DOCKER_HOST=unix:///run/secret-engine.sock"}})
	l.bob.create(t, l.image)
	var stats struct {
		Total int `json:"total_sandboxes"`
	}
	l.alice.must(t, http.MethodGet, "/v1/stats", nil).decode(t, &stats)
	if stats.Total != 0 {
		t.Errorf("alice sees %d sandboxes, and has none", stats.Total)
	}
	l.admin.must(t, http.MethodGet, "/v1/stats", nil).decode(t, &stats)
	if stats.Total != 1 {
		t.Errorf("the administrator sees %d sandboxes, want 1", stats.Total)
	}
	if body := string(l.alice.must(t, http.MethodGet, "/v1/providers", nil).body); strings.Contains(body, "secret-engine") {
		t.Errorf("alice sees where an engine is: %s", body)
	}
}

// TestMetricsByName asks for metrics as a page does whose name was made to resolve to the
// server's address.
func TestMetricsByName(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[telemetry]\nmetrics_listen = \"127.0.0.1:0\""})
	address := l.metricsAddress(t)
	for host, want := range map[string]int{"": http.StatusOK, "evil.example": http.StatusForbidden} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		res, err := l.alice.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("metrics by the name %q: %d, want %d", host, res.StatusCode, want)
		}
	}
}

var metricsPattern = regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`)

// metricsAddress returns where the server says that its metrics are.
func (l *lab) metricsAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		if address := metricsPattern.FindString(l.process.Log.String()); address != "" {
			return address
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the server does not say where its metrics are:\n%s", l.process.Log)
	return ""
}
