package daytona_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long a test waits for what must come.
const long = 60 * time.Second

// rig is a server on fake sandboxes, and keys of its clients.
type rig struct {
	*manager.Manager

	url             string
	client          *http.Client
	admin, ann, bob string // keys
	keys            *api.Keys
	store           *store.Store
	server          *daytona.Server
	world           *fake.World
}

// previews are such that they can be told apart.
type previews struct{}

func (previews) TokenURL(_ context.Context, id sandpit.ID, port int) (wire.PreviewURL, error) {
	return wire.PreviewURL{Port: port, URL: "http://" + string(id) + ".localhost/", Token: "token " + string(id)}, nil
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
	world := fake.NewWorld(tb.TempDir())
	r := &rig{world: world}
	var err error
	if r.store, err = store.Open(tb.Context(), tb.TempDir(), store.Options{}); err != nil {
		tb.Fatal(err)
	}
	provider := world.NewProvider()
	more.Store = r.store
	if more.Providers == nil {
		more.Providers = map[string]sandpit.Provider{"fake": provider}
	}
	more.Drain, more.DestroyOnClose = 100*time.Millisecond, true
	if r.Manager, err = manager.Open(tb.Context(), testoptions.Manager(more)); err != nil {
		tb.Fatal(err)
	}
	r.keys = api.NewKeys(r.store, clock.System{}, nil)
	tokens, err := token.Open(tb.Context(), token.Options{Store: r.store, Keys: r.keys, Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	o := daytona.Options{
		Manager: r.Manager, Keys: r.keys, MaxBody: 1 << 20, Previews: previews{},
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
	r.server.Register(mux)
	options := api.EdgeOptions{Keys: r.keys, Report: r.Events().Record, Refuse: daytona.WriteError, Public: daytona.Public()}
	for _, change := range edges {
		change(&options)
	}
	edge := api.NewEdge(options)
	server, err := api.Listen(tb.Context(), api.ServerOptions{Handler: edge.Handler(mux), Address: "127.0.0.1:0", Drain: long})
	if err != nil {
		tb.Fatal(err)
	}
	r.url = "http://" + server.Addr().String()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	transport := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	r.client = &http.Client{Transport: transport}
	tb.Cleanup(func() {
		stop()
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), long)
		defer cancel()
		if err := errors.Join(<-ended, r.server.Close(), r.Close(ctx), provider.Close(), r.store.Close(), world.Close()); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	r.admin = r.newKey(tb, api.NewKey{Owner: "root", Admin: true})
	r.ann, r.bob = r.newKey(tb, api.NewKey{Owner: "ann", Name: "laptop"}), r.newKey(tb, api.NewKey{Owner: "bob"})
	return r
}

func (r *rig) newKey(tb testing.TB, n api.NewKey) string {
	tb.Helper()
	_, secret, err := r.keys.Create(tb.Context(), n)
	if err != nil {
		tb.Fatal(err)
	}
	return secret
}

// got is a response.
type got struct {
	status int
	header http.Header
	body   string
}

// do sends a request with a key.
func (r *rig) do(tb testing.TB, key, method, path, body string) got {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+"/api"+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := r.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return got{res.StatusCode, res.Header, string(text)}
}

// want checks a status and a part of the response, and that errors have Daytona's form.
func (g got) want(tb testing.TB, status int, text string) {
	tb.Helper()
	if g.status != status || !strings.Contains(g.body, text) {
		tb.Errorf("status %d: %s; want %d and %q", g.status, g.body, status, text)
	}
	if g.status < 400 {
		return
	}
	var problem struct {
		Path, Timestamp, Error, Message, Code, Source string
		StatusCode                                    int
	}
	if err := json.Unmarshal([]byte(g.body), &problem); err != nil || problem.StatusCode != g.status || problem.Message == "" ||
		problem.Error == "" || problem.Code == "" || problem.Source != "DAYTONA_API" || !strings.HasPrefix(problem.Path, "/api") || problem.Timestamp == "" {
		tb.Errorf("status %d and not Daytona's form of errors: %s", g.status, g.body)
	}
}

// into decodes a response.
func (g got) into(tb testing.TB, to any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(g.body), to); err != nil {
		tb.Fatalf("%v: %s", err, g.body)
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
	g := r.do(tb, r.ann, http.MethodPost, "/sandbox", body)
	if g.want(tb, http.StatusOK, `"state":"started"`); tb.Failed() {
		tb.FailNow()
	}
	var b box
	g.into(tb, &b)
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
	g := r.do(tb, r.ann, http.MethodGet, "/sandbox/"+id, "")
	g.want(tb, http.StatusOK, id)
	var b box
	g.into(tb, &b)
	return b
}
