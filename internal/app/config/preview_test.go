package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestFrameAncestors takes origins, as a policy of a page names them, and nothing else.
func TestFrameAncestors(t *testing.T) {
	t.Parallel()
	c := load(t, user("[preview]\nframe_ancestors = ['https://App.example.org', 'http://10.0.0.1:8080']\n"))
	if diff := cmp.Diff([]string{"https://app.example.org", "http://10.0.0.1:8080"}, c.Preview.Frames); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c = load(t, user("", "SANDPIT_PREVIEW_FRAME_ANCESTORS=https://a.b,https://c.d:1"))
	if diff := cmp.Diff([]string{"https://a.b", "https://c.d:1"}, c.Preview.Frames); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, wrong := range []string{"*", "https://*.example.org", "https://a.b/c", "https://a.b;script-src *", "https://[::1]", "ftp://a.b", "a.b", "'none'", "https://u@a.b", ""} {
		_, err := config.Load(user("[preview]\nframe_ancestors = [\"" + wrong + "\"]\n"))
		if err == nil || !strings.Contains(err.Error(), "preview.frame_ancestors") || !strings.Contains(err.Error(), "is not an origin") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := config.Load(user("[preview]\nframe_ancestors = 5\n")); err == nil || !strings.Contains(err.Error(), "is not a list of origins") {
		t.Errorf("a number: %v", err)
	}
}
