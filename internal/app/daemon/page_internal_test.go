package daemon

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestPageLink writes a page as an agent does: the result has a link that opens once, and no token.
func TestPageLink(t *testing.T) {
	t.Parallel()
	w := newTenancy(t)
	got := w.openMCP(t, "?tools=compound")(t, "sandbox_files", map[string]any{"action": "create_file", "file_path": "index.html", "file_contents": "<p>page of bob"})
	link := regexp.MustCompile(`"page":\{"url":"(http://[^"]+\?sandpit_ticket=spt_[^"]+)","port":8080,"expires_at":"`).FindStringSubmatch(got)
	if link == nil || strings.Contains(got, "spv_") || strings.Contains(got, "sandpit_token") {
		t.Fatalf("written: %s", got)
	}
	for i, want := range []int{http.StatusOK, http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link[1], http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Host = strings.TrimPrefix(w.url, "http://") // the name in Host need not resolve
		res, err := w.client.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // read
		if err != nil || res.StatusCode != want || strings.Contains(string(body), "page of bob") != (want == http.StatusOK) {
			t.Errorf("open %d: HTTP %d, %v, want %d: %s", i+1, res.StatusCode, err, want, body)
		}
	}
}
