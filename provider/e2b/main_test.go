package e2b_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long an operation may take that is not under test.
const long = testserver.Timeout

// cloud is a server with E2B's API: sandpit's own, or E2B's.
type cloud struct {
	*testserver.Installation // nil if the cloud is E2B's own

	url, key string
	client   *http.Client
	// identities are those of the providers, for a cloud that has sandboxes of others, too.
	identities []string
}

// newCloud starts a server with one owner. Its template "base" has the programs of this machine.
func newCloud(tb testing.TB, settings ...string) *cloud {
	tb.Helper()
	settings = append([]string{"SANDPIT_E2B_TEMPLATES=base=host", "SANDPIT_SERVER_MAX_CONNECTIONS_PER_OWNER=1000"}, settings...)
	i := testserver.Install(tb, testserver.Options{Settings: settings})
	return &cloud{Installation: i, url: i.URL, key: i.NewKey(tb, "cloud"), client: http.DefaultClient}
}

// options returns the options of a provider for this cloud.
func (c *cloud) options() e2b.Options {
	return e2b.Options{Key: c.key, APIURL: c.url, SandboxURL: c.url, Identity: string(sandpit.NewID()), Poll: 500 * time.Millisecond}
}

// call calls the API, and returns the status and the body of the response.
func (c *cloud) call(tb testing.TB, method, path string) (int, []byte) {
	tb.Helper()
	return c.send(tb, method, path, "")
}

// post is call with a body.
func (c *cloud) post(tb testing.TB, path, body string) (int, []byte) {
	tb.Helper()
	return c.send(tb, http.MethodPost, path, body)
}

func (c *cloud) send(tb testing.TB, method, path, body string) (int, []byte) {
	tb.Helper()
	return testserver.Request{
		Method: method, URL: c.url + path, Body: body, Header: map[string]string{"X-Api-Key": c.key}, Client: c.client,
	}.Send(tb)
}

// leftovers returns the cloud's IDs of sandboxes that tests have left.
func (c *cloud) leftovers(tb testing.TB) (ids []string) {
	tb.Helper()
	if c.identities == nil {
		return c.list(tb)
	}
	for _, identity := range c.identities {
		ids = append(ids, c.listWith(tb, "&metadata="+url.QueryEscape("sandpit-server="+identity))...)
	}
	return ids
}

// list returns the cloud's IDs of all sandboxes.
func (c *cloud) list(tb testing.TB) []string {
	tb.Helper()
	return c.listWith(tb, "")
}

// listWith is list with a further query.
func (c *cloud) listWith(tb testing.TB, query string) (ids []string) {
	tb.Helper()
	_, text := c.call(tb, http.MethodGet, "/v2/sandboxes?limit=100"+query)
	var list []struct {
		ID string `json:"sandboxID"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		tb.Errorf("list: %v: %s", err, text)
	}
	for _, one := range list {
		ids = append(ids, one.ID)
	}
	return ids
}

// newProvider opens a provider, and closes it when the test ends.
func newProvider(tb testing.TB, o e2b.Options) *e2b.Provider {
	tb.Helper()
	p, err := e2b.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return p
}

// killIf deletes a sandbox of the cloud if it has an ID of ours.
func (c *cloud) killIf(tb testing.TB, cloudID string, id sandpit.ID) {
	tb.Helper()
	if c.idOf(tb, cloudID) == id {
		c.call(tb, http.MethodDelete, "/sandboxes/"+cloudID)
	}
}

// idOf returns our ID of a sandbox of the cloud, or "".
func (c *cloud) idOf(tb testing.TB, cloudID string) sandpit.ID {
	tb.Helper()
	_, text := c.call(tb, http.MethodGet, "/sandboxes/"+cloudID)
	var one struct {
		Metadata map[string]string `json:"metadata"`
	}
	_ = json.Unmarshal(text, &one) // a sandbox that is gone has none
	return sandpit.ID(one.Metadata["sandpit-id"])
}
