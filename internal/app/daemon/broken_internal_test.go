package daemon

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testport"
	daytona "github.com/sandpit-dev/sandpit/provider/daytona/register"
	e2b "github.com/sandpit-dev/sandpit/provider/e2b/register"
)

// brokenCloud answers calls with a status and a body.
type brokenCloud struct {
	status int
	body   string
	all    bool // also lists
}

func (b brokenCloud) start(t *testing.T, list string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.status == 0 {
			<-r.Context().Done() // it hangs
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet && !b.all {
			_, _ = io.WriteString(w, list)
			return
		}
		w.WriteHeader(b.status)
		_, _ = io.WriteString(w, b.body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestBrokenCloud starts servers whose default provider is a cloud that cannot be used: requests go to the next provider,
// and the sandbox, and the list of providers, say why in one sentence.
func TestBrokenCloud(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cloud brokenCloud
		away  bool
		text  string // CLOUD is the vendor
		// unusable means that the cloud refuses everything; otherwise only the creation of sandboxes.
		unusable bool
	}{
		"wrong key":   {brokenCloud{401, `{"message":"Invalid API key"}`, true}, false, "CLOUD rejects the API key: Invalid API key", true},
		"expired key": {brokenCloud{401, `{"message":"API key has expired"}`, true}, false, "the API key of CLOUD has expired: API key has expired", true},
		"unreachable": {away: true, text: "cannot reach 127.0.0.1:", unusable: true},
		"answers 500": {brokenCloud{500, `{"message":"it broke"}`, true}, false, "it broke", true},
		"hangs":       {brokenCloud{}, false, "timed out after 2 seconds", true},
		"quota": {
			brokenCloud{403, `{"message":"Total memory quota exceeded"}`, false},
			false,
			"a quota of the account at CLOUD is used up: Total memory quota exceeded", false,
		},
		"missing template": {brokenCloud{404, `{"message":"template 'base' not found"}`, false}, false, "not found: template 'base' not found", false},
	} {
		for vendor, list := range map[string]string{"E2B": `[]`, "Daytona": `{"items":[]}`} {
			t.Run(name+"/"+vendor, func(t *testing.T) {
				t.Parallel()
				url := "http://" + testport.Reserve(t)
				if !tc.away {
					url = tc.cloud.start(t, list)
				}
				checkBrokenCloud(t, vendor, url, strings.ReplaceAll(tc.text, "CLOUD", vendor), tc.unusable)
			})
		}
	}
}

func checkBrokenCloud(t *testing.T, vendor, url, text string, unusable bool) {
	t.Helper()
	const key = "key_0123456789abcdef" // of no account
	broken := strings.ToLower(vendor)
	cfg := configured(t, "[providers]", "create_timeout = { "+broken+" = 2 }", "call_timeout = { "+broken+" = 2 }")
	cfg.Provider, cfg.ProviderList = broken, []string{broken, "fake"}
	switch vendor {
	case "E2B":
		cfg.E2BCloud.Key, cfg.E2BCloud.APIURL, cfg.E2BCloud.SandboxURL = config.Secret(key), url, url
	default:
		cfg.Daytona.Key, cfg.Daytona.ServerURL, cfg.Daytona.Image = config.Secret(key), url, "daytona-snapshot:base"
	}
	r := start(t, cfg, append(fakes(newWorld(t)), e2b.Provider(), daytona.Provider()))
	defer r.stop()
	begin := time.Now()
	s := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	t.Logf("created after %v", time.Since(begin).Round(time.Millisecond))
	if s.Provider != "fake" || !strings.HasPrefix(s.Reason, "created by provider fake; "+broken+": ") || !strings.Contains(s.Reason, text) ||
		strings.Contains(s.Reason, key) || strings.Count(s.Reason, "\n") > 0 {
		t.Errorf("created by %q; reason %q, want one with %q", s.Provider, s.Reason, text)
	}
	if strings.HasPrefix(text, "timed out") {
		return // the list waits long for the cloud
	}
	var page wire.Page[wire.Provider]
	if err := json.Unmarshal([]byte(r.ask("GET", "/v1/providers", "", http.StatusOK)), &page); err != nil {
		t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.Name == broken && (p.Available == unusable || unusable && (!strings.Contains(p.Reason, text) || strings.Contains(p.Reason, key))) {
			t.Errorf("the list says available: %t, because %q; want %q", p.Available, p.Reason, text)
		}
	}
	r.ask("GET", "/readyz", "", http.StatusOK)
}
