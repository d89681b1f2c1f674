package survive_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/faultproxy"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// cloudKind is a vendor's API, which a server of sandpit has, too.
type cloudKind struct {
	provider string
	// list is the path of the list of all sandboxes, and authorize returns the header with a key.
	list      string
	authorize func(key string) map[string]string
	// environ returns the variables of a server that uses the cloud at a URL.
	environ func(url, key string) []string
	// isAPI reports whether a request is for the API: a sandbox does not answer twice.
	isAPI func(*http.Request) bool
	parse func(data []byte) ([]cloudBox, error)
}

// cloudBox is a sandbox at the cloud.
type cloudBox struct {
	id  sandpit.ID // at the server that created it
	ref string     // at the cloud
	// ends reports whether the cloud stops, pauses or deletes it without a request.
	ends bool
}

func cloudKinds() []cloudKind {
	return []cloudKind{
		{
			provider: "e2b", list: "/v2/sandboxes?limit=100",
			authorize: func(key string) map[string]string { return map[string]string{"X-Api-Key": key} },
			environ: func(url, key string) []string {
				return []string{"SANDPIT_PROVIDER=e2b", "E2B_API_KEY=" + key, "E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url}
			},
			isAPI: func(r *http.Request) bool { return r.Header.Get("E2b-Sandbox-Id") == "" },
			parse: parseE2B,
		},
		{
			provider: "daytona", list: "/api/sandbox?limit=200",
			authorize: func(key string) map[string]string { return map[string]string{"Authorization": "Bearer " + key} },
			environ: func(url, key string) []string {
				return []string{
					"SANDPIT_PROVIDER=daytona", "DAYTONA_API_KEY=" + key, "DAYTONA_API_URL=" + url + "/api",
					"SANDPIT_DAYTONA_SANDBOX_IMAGE_NAME=daytona-snapshot:daytonaio/sandbox",
				}
			},
			isAPI: func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") },
			parse: parseDaytona,
		},
	}
}

func parseE2B(data []byte) (all []cloudBox, err error) {
	var list []struct {
		ID       string            `json:"sandboxID"`
		State    string            `json:"state"`
		EndAt    time.Time         `json:"endAt"`
		Metadata map[string]string `json:"metadata"`
	}
	err = json.Unmarshal(data, &list)
	for _, one := range list {
		ends := one.State == "paused" || !one.EndAt.IsZero() && time.Until(one.EndAt) < 24*time.Hour
		all = append(all, cloudBox{sandpit.ID(one.Metadata["sandpit-id"]), one.ID, ends})
	}
	return all, err
}

func parseDaytona(data []byte) (all []cloudBox, err error) {
	var page struct {
		Items []struct {
			ID, State  string
			Labels     map[string]string
			AutoStop   int `json:"autoStopInterval"`
			AutoDelete int `json:"autoDeleteInterval"`
		}
	}
	err = json.Unmarshal(data, &page)
	for _, one := range page.Items {
		if one.State != "destroying" && one.State != "destroyed" {
			all = append(all, cloudBox{sandpit.ID(one.Labels["dev.sandpit.id"]), one.ID, one.AutoStop > 0 && one.AutoDelete >= 0})
		}
	}
	return all, err
}

// cloud is a server of sandpit in the role of a vendor's cloud, and the network before it.
type cloud struct {
	cloudKind

	t     *testing.T
	url   string
	key   string
	proxy *faultproxy.Proxy
}

// newCloud starts a cloud behind a network that fails.
func newCloud(t *testing.T, kind cloudKind) *cloud {
	t.Helper()
	server := testserver.Install(t, testserver.Options{Settings: []string{
		"SANDPIT_E2B_TEMPLATES=base=host",
		"SANDPIT_SERVER_RATE=100000", "SANDPIT_SERVER_BURST=100000", "SANDPIT_SERVER_MAX_CONNECTIONS_PER_OWNER=1000",
		"SANDPIT_SERVER_MAX_REQUESTS=10000", "SANDPIT_SERVER_MAX_REQUESTS_PER_OWNER=10000",
	}})
	c := &cloud{cloudKind: kind, t: t, url: server.URL, key: server.NewKey(t, "cloud")}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c.proxy = faultproxy.Start(t, faultproxy.Options{Target: c.url, Seed: seed, Share: 0.25, Only: kind.isAPI})
	return c
}

// listBoxes returns all sandboxes at the cloud, past the network that fails.
func (c *cloud) listBoxes() []cloudBox {
	c.t.Helper()
	status, data := testserver.Request{Method: http.MethodGet, URL: c.url + c.list, Header: c.authorize(c.key)}.Send(c.t)
	all, err := c.parse(data)
	if err != nil || status != http.StatusOK {
		c.t.Errorf("list the cloud: status %d: %v: %s", status, err, data)
	}
	return all
}

// checkEnds reports sandboxes that would run for ever now that there is no server.
func (c *cloud) checkEnds() {
	c.t.Helper()
	for _, one := range c.listBoxes() {
		if !one.ends {
			c.t.Errorf("sandbox %s (%s) has no end at the cloud", one.id, one.ref)
		}
	}
}

// awaitSame waits until the cloud has exactly the sandboxes of the server, each once.
func (c *cloud) awaitSame(list func() map[sandpit.ID]sandpit.State) {
	c.t.Helper()
	for end := time.Now().Add(2 * patience); ; time.Sleep(time.Second) {
		at, here := make(map[sandpit.ID]int), make(map[sandpit.ID]int)
		for _, one := range c.listBoxes() {
			at[one.id]++
		}
		for id := range list() {
			here[id] = 1
		}
		if maps.Equal(at, here) {
			return
		}
		if time.Now().After(end) {
			c.t.Errorf("the cloud has %v, and the server %v", at, list())
			return
		}
	}
}

// TestCloudSurvives kills servers while they create, use and delete sandboxes at a cloud, through a network that fails.
// No sandbox remains that the server does not know, no creation and no command happens twice, no sandbox is lost, and
// each error of the server names provider, sandbox and operation.
func TestCloudSurvives(t *testing.T) {
	operations, kills := number("SANDPIT_TEST_CLOUD_OPERATIONS", 40), number("SANDPIT_TEST_CLOUD_KILLS", 1)
	for _, kind := range cloudKinds() {
		t.Run(kind.provider, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, kind)
			w := newWorld(t)
			w.environ = kind.environ(c.proxy.URL, c.key)
			w.start()
			w.makeKey()
			run := newCloudRun(w, c)
			begin := time.Now()
			killed := run.work(operations, kills)
			c.proxy.Heal()
			t.Logf("%d operations in %s, %d servers killed; requests: %v; outcomes: %v",
				run.total(), time.Since(begin).Round(time.Second), killed, c.proxy.Counts(), run.done)
			c.awaitSame(run.list)
			run.deleteRest()
			c.awaitSame(run.list)
			if left := c.listBoxes(); len(left) > 0 {
				t.Errorf("left at the cloud: %v", left)
			}
			w.stop()
			if secret := w.words.String(); strings.Contains(secret, c.key) {
				t.Error("the log contains the key of the cloud")
			}
		})
	}
}

// describeMissing returns what an error lacks of provider, sandbox and operation.
func describeMissing(err error) (missing []string) {
	s := sandpit.SubjectOf(err)
	for name, value := range map[string]string{"provider": s.Provider, "sandbox": string(s.Sandbox), "operation": s.Operation} {
		if value == "" {
			missing = append(missing, name)
		}
	}
	return missing
}
