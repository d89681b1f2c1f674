package daytona_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long bounds each wait of a test.
const long = testapi.Patience

// rig is a server with Daytona's API.
type rig struct {
	*testapi.Server

	server *daytona.Server
}

// previews returns URLs and tokens that tests recognize.
type previews struct{}

func (previews) TokenURL(_ context.Context, id sandpit.ID, port int) (wire.PreviewURL, error) {
	return wire.PreviewURL{Port: port, URL: "http://" + string(id) + ".localhost/", Token: "token of port " + strconv.Itoa(port) + " of " + string(id)}, nil
}

func (previews) SignedURL(_ context.Context, id sandpit.ID, port int, life time.Duration) (wire.PreviewURL, error) {
	return wire.PreviewURL{Port: port, PathURL: "http://localhost/p/" + string(id) + "/?token=x", Token: "signed for " + life.String()}, nil
}

func (previews) ExpireSignedURL(_ context.Context, _ sandpit.ID, _ int, token string) error {
	if token != "good" {
		return sandpit.Errorf(sandpit.NotFound, "no such token")
	}
	return nil
}

func (previews) SigningKey(_ context.Context, id sandpit.ID, renew bool) (string, error) {
	if renew {
		return "renewed key " + string(id), nil
	}
	return "key " + string(id), nil
}

func newRig(tb testing.TB, change func(*daytona.Options)) *rig {
	tb.Helper()
	return newRigOf(tb, manager.Options{}, change)
}

// newRigOf is newRig with more options of the manager and of the edge.
func newRigOf(tb testing.TB, more manager.Options, change func(*daytona.Options), edges ...func(*api.EdgeOptions)) *rig {
	tb.Helper()
	return newRigAt(tb, tb.TempDir(), more, change, edges...)
}

// newRigAt is newRigOf with a state directory.
func newRigAt(tb testing.TB, dir string, more manager.Options, change func(*daytona.Options), edges ...func(*api.EdgeOptions)) *rig {
	tb.Helper()
	r := &rig{Server: testapi.OpenAt(tb, dir, more)}
	tokens, err := token.Open(tb.Context(), token.Options{Store: r.Store, Keys: r.Keys, Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	o := daytona.Options{
		Manager: r.Manager, Keys: r.Keys, Pending: r.Store.PendingSandboxes(), MaxBody: 1 << 20, Previews: previews{},
		Limits: sandpit.Resources{CPUs: 1, Memory: 1 << 30, Disk: 3 << 30},
		SSH: daytona.SSH{Tokens: sshkey.NewTokens(clock.System{}, tokens), Where: func() (wire.SSHServer, error) {
			return wire.SSHServer{Host: "127.0.0.1", Port: 2222}, nil
		}},
	}
	if change != nil {
		change(&o)
	}
	mux := http.NewServeMux()
	r.server = daytona.New(o)
	if err := r.server.Resume(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	r.server.Register(mux)
	edge := api.EdgeOptions{Refuse: daytona.WriteError, Public: daytona.Public()}
	for _, change := range edges {
		change(&edge)
	}
	r.Serve(tb, mux, edge, r.server.Close)
	return r
}

// got is a response.
type got struct{ testapi.Response }

// do sends a request with a key.
func (r *rig) do(tb testing.TB, key, method, path, body string) got {
	tb.Helper()
	header := http.Header{}
	if key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	return got{r.Send(tb, method, "/api"+path, body, header)}
}

// want checks a status and a part of the response, and that errors have Daytona's form.
func (g got) want(tb testing.TB, status int, text string) {
	tb.Helper()
	if g.Status != status || !strings.Contains(g.Body, text) {
		tb.Errorf("status %d: %s; want %d and %q", g.Status, g.Body, status, text)
	}
	if g.Status < 400 {
		return
	}
	var problem struct {
		Path, Timestamp, Error, Message, Code, Source string
		StatusCode                                    int
	}
	if err := json.Unmarshal([]byte(g.Body), &problem); err != nil || problem.StatusCode != g.Status || problem.Message == "" ||
		problem.Error == "" || problem.Code == "" || problem.Source != "DAYTONA_API" || !strings.HasPrefix(problem.Path, "/api") || problem.Timestamp == "" {
		tb.Errorf("status %d and not Daytona's form of errors: %s", g.Status, g.Body)
	}
}

// box is a sandbox as clients see it.
type box struct {
	ID, Name, OrganizationID, Snapshot, User, Target, State, DesiredState, ErrorReason, ToolboxProxyURL, SandboxClass string

	Public, NetworkBlockAll           bool
	NetworkAllowList, DomainAllowList string
	CPU, Memory, Disk                 float64
	Env, Labels                       map[string]string
	AutoStopInterval, AutoPauseInterval, AutoArchiveInterval,
	AutoDeleteInterval int
	AutoDestroyAt time.Time
	Volumes       []struct{ VolumeID, MountPath string }
}

// made returns a new sandbox of ann's.
func (r *rig) made(tb testing.TB, body string) box {
	tb.Helper()
	g := r.do(tb, r.Ann, http.MethodPost, "/sandbox", body)
	if g.want(tb, http.StatusOK, `"state":"started"`); tb.Failed() {
		tb.FailNow()
	}
	var b box
	g.Decode(tb, &b)
	return b
}

// await waits until a sandbox of ann's has a state.
func (r *rig) await(tb testing.TB, id, state string) {
	tb.Helper()
	for begun := time.Now(); r.is(tb, id).State != state; time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > long {
			tb.Fatalf("sandbox %s does not become %s", id, state)
		}
	}
}

// is returns a sandbox of ann's as it is now.
func (r *rig) is(tb testing.TB, id string) box {
	tb.Helper()
	g := r.do(tb, r.Ann, http.MethodGet, "/sandbox/"+id, "")
	g.want(tb, http.StatusOK, id)
	var b box
	g.Decode(tb, &b)
	return b
}
