package e2b_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/testing/testapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long bounds each wait of a test.
const long = testapi.Patience

// rig is a server with E2B's API.
type rig struct{ *testapi.Server }

// tokens returns tokens that tests recognize.
type tokens struct{}

func (tokens) AccessTokens(_ context.Context, id sandpit.ID, wantTraffic bool) (guest, traffic string, err error) {
	if wantTraffic {
		traffic = "traffic " + string(id)
	}
	return "guest " + string(id), traffic, nil
}

func newRig(tb testing.TB, change func(*e2b.Options)) *rig {
	tb.Helper()
	return newRigOf(tb, manager.Options{}, change)
}

// newRigOf is newRig with more options of the manager.
func newRigOf(tb testing.TB, more manager.Options, change func(*e2b.Options)) *rig {
	tb.Helper()
	r := &rig{testapi.Open(tb, more)}
	o := e2b.Options{
		Manager: r.Manager, Store: r.Store, Keys: r.Keys, Tokens: tokens{}, Public: true, MaxBody: 1 << 20,
		Domain: func() string { return "localhost:1" },
	}
	if change != nil {
		change(&o)
	}
	mux := http.NewServeMux()
	e2b.New(o).Register(mux)
	r.Serve(tb, mux, api.EdgeOptions{Refuse: e2b.WriteError}, func() error { return nil })
	return r
}

// got is a response.
type got struct{ testapi.Response }

// do sends a request with a key.
func (r *rig) do(tb testing.TB, key, method, path, body string) got {
	tb.Helper()
	header := http.Header{}
	if key != "" {
		header.Set("X-Api-Key", key)
	}
	return got{r.Send(tb, method, path, body, header)}
}

// want checks a status, and that errors have E2B's form and a message.
func (g got) want(tb testing.TB, status int, text string) {
	tb.Helper()
	if g.Status != status || !strings.Contains(g.Body, text) {
		tb.Errorf("status %d: %s; want %d and %q", g.Status, g.Body, status, text)
	}
	if g.Status < 400 {
		return
	}
	var problem struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal([]byte(g.Body), &problem); err != nil || problem.Code != g.Status || problem.Message == "" {
		tb.Errorf("status %d and not E2B's form of errors: %s", g.Status, g.Body)
	}
}

// made is a new sandbox of ann's.
func (r *rig) made(tb testing.TB, body string) string {
	tb.Helper()
	return r.madeBy(tb, r.Ann, body)
}

// madeBy is made with a key.
func (r *rig) madeBy(tb testing.TB, key, body string) string {
	tb.Helper()
	g := r.do(tb, key, http.MethodPost, "/v2/sandboxes", body)
	g.want(tb, http.StatusCreated, "sandboxID")
	var b struct {
		ID string `json:"sandboxID"`
	}
	g.Decode(tb, &b)
	return b.ID
}
