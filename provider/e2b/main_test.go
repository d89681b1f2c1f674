package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long anything may take that is not under test.
const long = 2 * time.Minute

// cloud is a server of sandpit that has the role of E2B's cloud.
type cloud struct {
	url, key string
	client   *http.Client
	environ  []string
	runtime  string
	process  *testserver.Server
	// identities are those of the providers, for a cloud that has sandboxes of others, too.
	identities []string
}

// newCloud starts a server with one owner. Its template "base" has the programs of this machine.
func newCloud(tb testing.TB, settings ...string) *cloud {
	tb.Helper()
	dir := tb.TempDir()
	c := &cloud{runtime: filepath.Join(dir, "run"), client: http.DefaultClient}
	environ := append(testengine.Environ(dir),
		"SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_SERVER_DRAIN=1", "SANDPIT_E2B_TEMPLATES=base=host",
		"SANDPIT_SERVER_MAX_CONNECTIONS_PER_OWNER=1000")
	c.environ = slices.Concat(environ, settings)
	c.process = testserver.Start(tb, c.environ)
	tb.Cleanup(func() {
		if c.key != "" {
			for _, id := range c.list(tb) {
				c.call(tb, http.MethodDelete, "/sandboxes/"+id)
			}
		}
		c.process.End(tb, syscall.SIGTERM)
		c.awaitEngines(tb)
	})
	c.url = c.process.URL
	c.key = strings.TrimSpace(c.run(tb, "key", "create", "-q", "--owner", "cloud"))
	return c
}

// run runs sandpit as a user of the cloud's machine does.
func (c *cloud) run(tb testing.TB, args ...string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), testengine.Path(tb), args...)
	cmd.Env = c.environ
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%q: %v\n%s", args, err, &errs)
	}
	return string(out)
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("X-Api-Key", c.key)
	req.Close = true
	res, err := c.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return res.StatusCode, text
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

// awaitEngines waits for engines to end, which they do soon after their last sandbox.
func (c *cloud) awaitEngines(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(c.runtime, "engines", "*"))
		if err != nil {
			tb.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Errorf("engines are left: %v", left)
			return
		}
	}
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
