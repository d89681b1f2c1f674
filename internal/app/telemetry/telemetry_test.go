package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/telemetry"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "p4ssw0rd"

// No log line contains a secret.
func TestLogHidesSecrets(t *testing.T) {
	t.Parallel()
	address, err := url.Parse("https://user:" + password + "@example.com/x")
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Authorization": {"Bearer " + password}, "X-Api-Key": {password}, "Cookie": {password}, "Accept": {"text/html"}}
	for name, console := range map[string]bool{"console": true, "json": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			log := telemetry.NewLog(&out, telemetry.LogOptions{Console: console})
			log = log.With(slog.String("access_token", password)).WithGroup("request")
			log.Info("told", slog.String("password", password), slog.Any("apiKey", password), slog.Any("header", header),
				slog.Any("url", address), slog.Group("credentials", slog.String("user", password)),
				slog.Any("env", map[string]string{"AWS_SECRET_ACCESS_KEY": password, "HOME": "/root"}),
				slog.Any("key", config.Secret(password)), slog.String("key_id", "visible"), slog.Int("tokens", 12345), slog.String("plain", "seen"))
			text := out.String()
			if strings.Contains(text, password) {
				t.Errorf("a secret was told: %s", text)
			}
			for _, want := range []string{"visible", "12345", "seen", "/root", "text/html", "example.com"} {
				if !strings.Contains(text, want) {
					t.Errorf("%q was not told: %s", want, text)
				}
			}
		})
	}
}

func TestLogFormat(t *testing.T) {
	t.Parallel()
	requestID := func(context.Context) string { return "r1" }
	var out bytes.Buffer
	log := telemetry.NewLog(&out, telemetry.LogOptions{Level: slog.LevelWarn, RequestID: requestID})
	log.InfoContext(t.Context(), "too little")
	log.WarnContext(t.Context(), "enough", slog.String("a", "b"))
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	told, _ := line["time"].(string)
	if _, err := time.Parse("2006-01-02T15:04:05.000Z", told); err != nil {
		t.Errorf("time: %v", err)
	}
	source, _ := line["source"].(string)
	if line["msg"] != "enough" || line["level"] != "WARN" || line["a"] != "b" || line["request_id"] != "r1" ||
		!regexp.MustCompile(`^telemetry/telemetry_test\.go:\d+$`).MatchString(source) {
		t.Errorf("line: %v", line)
	}
	out.Reset()
	telemetry.NewLog(&out, telemetry.LogOptions{Console: true}).Info("for people", slog.String("a", "b"))
	if got := out.String(); !regexp.MustCompile(`^\S+ INF telemetry/telemetry_test\.go:\d+ for people a=b\n$`).MatchString(got) || strings.Contains(got, "\x1b") {
		t.Errorf("console: %q", got)
	}
}

// counts a bit of everything.
func exercised(t *testing.T) *telemetry.Metrics {
	t.Helper()
	m := telemetry.NewMetrics("v1.2.3")
	world := fake.NewWorld(t.TempDir())
	p := m.Provider("fake", world.NewProvider())
	s, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.Open(t.Context(), testoptions.Manager(manager.Options{
		Store: s, Providers: map[string]sandpit.Provider{"fake": p}, Observer: m,
		Pools: []manager.Pool{{Size: 0, Max: 1}, {Spec: sandpit.Spec{Hostname: "b"}, Max: 1}}, // alike but for the name
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := errors.Join(mgr.Close(ctx), p.Close(), s.Close(), world.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	m.Watch(telemetry.Sources{Manager: mgr, Queue: s.Queue(), Shares: mgr.Shares})
	m.Request("POST", "POST /v1/sandboxes", 201, time.Second, 10)
	m.Request("MADE-UP", "", 404, time.Second, 10)
	m.Ended(time.Second, sandpit.ExitStatus{Code: 1}, nil)
	m.Handled("deadline", sandpit.Errorf(sandpit.Unavailable, "x"))
	m.Asked("fake", "", true)
	tracer := telemetry.NewTracer(config.Traces{}, "v", m, nil)
	tracer.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return m
}

// The figures are as Prometheus wants them.
func TestMetricsLint(t *testing.T) {
	t.Parallel()
	m := exercised(t)
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestSandboxFigures: usage is reported for each sandbox up to a number, and for all together.
func TestSandboxFigures(t *testing.T) {
	t.Parallel()
	world := fake.NewWorld(t.TempDir())
	p := world.NewProvider()
	s, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.Open(t.Context(), testoptions.Manager(manager.Options{
		Store: s, Providers: map[string]sandpit.Provider{"fake": p}, DestroyOnClose: true, Usage: manager.Usage{Every: 20 * time.Millisecond},
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := errors.Join(mgr.Close(ctx), p.Close(), s.Close(), world.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	const all = 3
	for range all {
		if _, err := mgr.Create(t.Context(), manager.CreateRequest{Lease: sandpit.Lease{Owner: "ann"}}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); len(mgr.Usage().Latest()) < all; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sandboxes are not measured")
		}
	}
	for _, most := range []int{0, 2, 10} {
		m := telemetry.NewMetrics("v")
		m.Watch(telemetry.Sources{Manager: mgr, Queue: s.Queue(), Sandboxes: most})
		n, err := testutil.GatherAndCount(m.Gatherer(), "sandpit_sandbox_memory_bytes", "sandpit_sandbox_cpu_seconds_total", "sandpit_sandbox_disk_bytes",
			"sandpit_sandbox_processes", "sandpit_sandbox_memory_limit_bytes")
		if want := 5 * min(most, all); err != nil || n != want {
			t.Errorf("with %d: %d series, %v, want %d", most, n, err, want)
		}
		if n, err := testutil.GatherAndCount(m.Gatherer(), "sandpit_sandboxes_memory_bytes"); err != nil || n != 1 {
			t.Errorf("%d sums, %v", n, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := exercised(t)
	r := httptest.NewRecorder()
	m.Handler().ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	text := r.Body.String()
	for _, line := range []string{
		`sandpit_build_info{version="v1.2.3"} 1`,
		`sandpit_http_requests_total{code="201",method="POST",route="/v1/sandboxes"} 1`,
		`sandpit_http_requests_total{code="404",method="other",route="none"} 1`,
		`sandpit_http_sent_bytes_total 20`,
		`sandpit_commands_total{result="failed"} 1`,
		`sandpit_queue_handled_total{code="unavailable",kind="deadline"} 1`,
		`sandpit_pool_requests_total{image="host",provider="fake",result="hit"} 1`,
		`sandpit_pool_size{image="host",provider="fake"} 0`,
		`sandpit_queue_messages{state="dead"} 0`,
		`sandpit_sandboxes{state="running"} 0`,
		`sandpit_sandboxes_max 100`,
		`sandpit_events_lost_total 0`,
		`sandpit_resource_units{resource="sandbox starts"} 8`,
		`sandpit_resource_units_used{resource="sandbox starts"} 0`,
		`sandpit_resource_requests_waiting{resource="template builds"} 0`,
		`sandpit_resource_requests_refused_total{resource="template builds"} 0`,
		`sandpit_provider_calls_total{call="list",code="ok",provider="fake"} `,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("nothing of %s in\n%s", line, text)
		}
	}
}

// Labels cannot grow without end.
func TestWordsAreBounded(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics("v")
	for i := range 500 {
		m.Done(manager.Report{Action: "action " + string(rune('a'+i%26)) + strings.Repeat("x", i%7) + time.Duration(i).String()})
	}
	n, err := testutil.GatherAndCount(m.Gatherer(), "sandpit_operations_total")
	if err != nil || n > 101 {
		t.Errorf("%d series, %v; want at most 101", n, err)
	}
}

func TestCommandResults(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics("v")
	for _, c := range []struct {
		status sandpit.ExitStatus
		err    error
	}{
		{},
		{status: sandpit.ExitStatus{Code: 2}},
		{status: sandpit.ExitStatus{Code: 137, Signaled: true}},
		{status: sandpit.ExitStatus{Code: 137, Signaled: true, OutOfMemory: true}},
		{err: sandpit.Errorf(sandpit.Timeout, "x")},
	} {
		m.Ended(time.Millisecond, c.status, c.err)
	}
	err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(`
# HELP sandpit_commands_total Commands that ended, by how.
# TYPE sandpit_commands_total counter
sandpit_commands_total{result="failed"} 1
sandpit_commands_total{result="killed"} 1
sandpit_commands_total{result="ok"} 1
sandpit_commands_total{result="out_of_memory"} 1
sandpit_commands_total{result="timeout"} 1
`), "sandpit_commands_total")
	if err != nil {
		t.Error(err)
	}
}

// Decorators hide no ability of what is inside.
func TestDecoratorsShowWhatIsInside(t *testing.T) {
	t.Parallel()
	world := fake.NewWorld(t.TempDir())
	t.Cleanup(func() { _ = world.Close() })
	inner := world.NewProvider()
	m := telemetry.NewMetrics("v")
	p := telemetry.NewTracer(config.Traces{}, "v", m, nil).Provider("fake", m.Provider("fake", inner))
	if got, ok := sandpit.As[*fake.Provider](p); !ok || got != inner {
		t.Errorf("as: %v, %v", got, ok)
	}
	if _, ok := sandpit.As[io.Seeker](p); ok {
		t.Error("an ability was found that is not there")
	}
	i, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := sandpit.As[sandpit.Pauser](i); !ok {
		t.Error("the instance has lost an ability")
	}
	if err := errors.Join(i.Destroy(t.Context()), p.Close()); err != nil {
		t.Error(err)
	}
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// traceInside serves one request that runs a command in a sandbox, and returns what
// TRACEPARENT it saw.
func traceInside(t *testing.T, tracer *telemetry.Tracer, header string) (inside, answer string) {
	t.Helper()
	world := fake.NewWorld(t.TempDir())
	p := tracer.Provider("fake", world.NewProvider())
	defer func() {
		if err := errors.Join(p.Close(), world.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	h := tracer.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		i, err := p.Create(r.Context(), sandpit.NewID(), sandpit.Spec{})
		if err != nil {
			t.Error(err)
			return
		}
		var out strings.Builder
		process, err := i.Guest().Start(r.Context(), sandpit.Command{Args: []string{"sh", "-c", "echo $TRACEPARENT"}, Dir: "~", Stdout: &out})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := process.Wait(r.Context()); err != nil {
			t.Error(err)
		}
		inside = strings.TrimSpace(out.String())
		tracer.Answered(r, "POST /v1/run", 500)
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/run", strings.NewReader("x"))
	if header != "" {
		r.Header.Set("Traceparent", header)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return inside, w.Header().Get("Traceparent")
}

// Without a collector, a client's trace context still reaches its commands.
func TestTraceParentGoesThrough(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics("v")
	tracer := telemetry.NewTracer(config.Traces{}, "v", m, nil)
	for header, want := range map[string]string{parent: parent, "": "", "00-nonsense": "", "00-" + traceID + "-b7ad6b7169203331-01\nX": ""} {
		if inside, answer := traceInside(t, tracer, header); inside != want || answer != want {
			t.Errorf("%q: %q inside, %q in the answer; want %q", header, inside, answer, want)
		}
	}
}

// TestSpans plays a collector.
func TestSpans(t *testing.T) {
	t.Parallel()
	bodies := make(chan []byte, 10)
	tries := 0
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries == 1 {
			w.WriteHeader(http.StatusServiceUnavailable) // it is tried again
			return
		}
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != password || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("header: %v", r.Header)
		}
		bodies <- body
	}))
	defer collector.Close()
	tracer := telemetry.NewTracer(config.Traces{
		Endpoint: collector.URL + "/v1/traces", Headers: map[string]config.Secret{"Authorization": password},
		Timeout: time.Minute, Service: "mine", Attributes: map[string]string{"zone": "a"},
	}, "v1", nil, nil)
	inside, answer := traceInside(t, tracer, parent)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(inside, "00-"+traceID+"-") || inside == parent || inside != answer {
		t.Errorf("inside %q, answer %q; want a child of %q", inside, answer, parent)
	}
	var got struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []struct{ Key string } }
			ScopeSpans []struct {
				Spans []struct {
					TraceID, SpanID, ParentSpanID, Name string
					Kind                                int
					StartTimeUnixNano                   string
					Status                              struct{ Code int }
					Attributes                          []struct {
						Key   string
						Value map[string]string
					}
				}
			}
		}
	}
	if err := json.Unmarshal(<-bodies, &got); err != nil {
		t.Fatal(err)
	}
	spans := got.ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 || len(got.ResourceSpans[0].Resource.Attributes) != 3 {
		t.Fatalf("got %+v", got)
	}
	create, request := spans[0], spans[1]
	if create.Name != "create sandbox" || create.ParentSpanID != request.SpanID || create.TraceID != traceID || create.Kind != 3 {
		t.Errorf("create: %+v", create)
	}
	if request.Name != "POST /v1/run" || request.ParentSpanID != "b7ad6b7169203331" || request.Kind != 2 || request.Status.Code != 2 {
		t.Errorf("request: %+v", request)
	}
}

// A collector that is away, or sends us elsewhere, does no harm.
func TestSpansAreLostAloud(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the headers were sent elsewhere") }))
	defer other.Close()
	collector := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer collector.Close()
	var out bytes.Buffer
	tracer := telemetry.NewTracer(config.Traces{
		Endpoint: collector.URL, Headers: map[string]config.Secret{"Authorization": password}, Timeout: time.Minute,
	}, "v1", nil, telemetry.NewLog(&out, telemetry.LogOptions{}))
	traceInside(t, tracer, "")
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "telemetry: spans not sent and lost") || strings.Contains(text, password) {
		t.Errorf("log: %s", text)
	}
}

// TestNoBody passes on that a request has no body: later handlers keep its connection then.
func TestNoBody(t *testing.T) {
	t.Parallel()
	tracer := telemetry.NewTracer(config.Traces{}, "v", telemetry.NewMetrics("v1"), nil)
	tracer.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			t.Errorf("the body is %T", r.Body)
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
}
