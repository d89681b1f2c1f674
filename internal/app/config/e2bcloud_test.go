package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestE2BCloud(t *testing.T) {
	t.Parallel()
	cfg, err := loadDocker(t, "[e2b_cloud]\nguest = 'own'\ntemplate = 'from-file'\n",
		"E2B_API_KEY=e2b_0123", "E2B_DOMAIN=cloud.example.org:8443", "E2B_API_URL=http://127.0.0.1:3000/", "E2B_SANDBOX_URL=http://127.0.0.1:3002",
		"E2B_TEMPLATE=mine", "E2B_TEMPLATE_ID=other", "E2B_TIMEOUT=7200")
	if err != nil {
		t.Fatal(err)
	}
	want := config.E2BCloud{
		Key: "e2b_0123", Domain: "cloud.example.org:8443", APIURL: "http://127.0.0.1:3000", SandboxURL: "http://127.0.0.1:3002",
		Template: "mine", Timeout: 2 * time.Hour, Guest: "own",
	}
	if diff := cmp.Diff(want, cfg.E2BCloud); diff != "" {
		t.Errorf("e2b_cloud (-want +got):\n%s", diff)
	}
	cfg, err = loadDocker(t, "", "E2B_TEMPLATE_ID=other")
	if err != nil || cfg.E2BCloud.Template != "other" || config.Default().E2BCloud.Template != "base" || config.Default().E2BCloud.Timeout != time.Hour {
		t.Errorf("template %q, %v; defaults %+v", cfg.E2BCloud.Template, err, config.Default().E2BCloud)
	}
	cfg, err = loadDocker(t, "", "E2B_API_KEY=e2b_0123", "SANDPIT_E2B_CLOUD_API_KEY=ours")
	if err != nil || cfg.E2BCloud.Key.Reveal() != "ours" {
		t.Errorf("our own variable: %v, %v, want it to take precedence", cfg.E2BCloud.Key.Reveal(), err)
	}
}

// TestE2BCloudRefused checks that errors repeat no secret.
func TestE2BCloudRefused(t *testing.T) {
	t.Parallel()
	for line, text := range map[string]string{
		"api_key = 's3cret with spaces'":        "not an API key",
		"domain = 'https://e2b.app'":            "not a domain",
		"api_url = 'e2b.app'":                   "not a URL",
		"sandbox_url = 'http://me:s3cret@host'": "not a URL",
		"template = 'a b'":                      "not a name of a template",
		"timeout = 0":                           "too short",
		"guest = 'theirs'":                      "not one of auto, own, cloud",
	} {
		_, err := loadDocker(t, "[e2b_cloud]\n"+line)
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", line, err, text)
		}
	}
}
