package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

const serverFile = `
provider = "docker"
url = "https://sandpit.example.com/"
api_key = "e2b_file"

[server]
listen = "[::]:9000"
socket = "none"
names = ["Sandpit.example.com", "*.boxes.example.com"]
tls_cert = "/etc/tls/cert.pem"
tls_key = "/etc/tls/key.pem"
keyless = false
max_body = "8m"
max_connections = 500
min_free_disk = "2g"
max_connections_per_address = 40
max_connections_per_owner = 50
max_requests = 300
max_requests_per_owner = 30
memory = "64m"
memory_per_owner = "8m"
trusted_proxies = ["10.0.0.5", "192.168.1.9/24", "2001:db8::/32"]
rate = 10
burst = 20
drain = "1m"
mount_roots = ["/srv/a", "/srv/b/"]
mcp_max_sessions = 8
mcp_idle_timeout = "90s"
mcp_tools = ["default", "git", "file_download"]
mcp_config = "/etc/sandpit/mcp.json"

[manager]
max_sandboxes = 7
idle_timeout = 60
idle_action = "stop"
cleanup_interval = 30
create_timeout = 20
call_timeout = 10
parallel = 2
lifetime = "2h"
remember = 5
max_volumes = 3
max_volume_bytes = "7g"
max_saved = 9
max_saved_bytes = "3g"
max_snapshots = 4
max_snapshot_bytes = "2g"
max_checkpoint_bytes = "5g"
max_checkpoint_age = "48h"
max_templates = 7
max_template_bytes = "6g"
max_builds = 3
build_timeout = "90s"
max_upload_bytes = "3g"
max_upload_bytes_total = "9g"
owner_quota = 3
delete_on_stop = true
quotas = { alice = 5 }
label_quotas = { "team=red" = 6 }

[usage]
interval = 0
memory = 80
cpu = 0
disk = 95
pids = 100
action = "kill"
sustained = "5m"

[audit]
max_age = "720h"
max_size = "2m"
export_dir = "/srv/audit"
max_export_size = "3m"

[queue]
provider = "redis"
redis_url = "rediss://u:p4ss@redis:6380/2"
redis_tls_ca_path = "/etc/ca.pem"
queue_name = "mine"
max_retries = 0

[[pool]]
image = "python:3.12-slim"
size = 2
max = 4
memory_limit = "1g"
cpu_limit = 2
pids_limit = 64
hostname = "box"
network_enabled = true

[[pool]]
size = 1

[log]
level = "Warning"
format = "json"

[telemetry]
metrics_sandboxes = 7
metrics = false
metrics_listen = "127.0.0.1:9464"
metrics_token = "0123456789abcdef"
`

func TestServerFile(t *testing.T) {
	t.Parallel()
	c := load(t, user(serverFile))
	want := config.Default()
	want.LLM.APIType = config.LLMOpenAI
	want.Provider, want.ProviderList = "docker", []string{"docker"}
	want.URL, want.APIKey = "https://sandpit.example.com", "e2b_file"
	want.Server = config.Server{
		Listen: "[::]:9000", Socket: config.None, Names: []string{"sandpit.example.com", "*.boxes.example.com"},
		TLSCert: "/etc/tls/cert.pem", TLSKey: "/etc/tls/key.pem", MaxBody: 8 << 20, MaxConnections: 500, MinFreeDisk: 2 << 30,
		MaxConnectionsPerAddress: 40, MaxConnectionsPerOwner: 50, MaxRequests: 300, MaxRequestsPerOwner: 30, Memory: 64 << 20, MemoryPerOwner: 8 << 20,
		TrustedProxies: []string{"10.0.0.5/32", "192.168.1.0/24", "2001:db8::/32"},
		Rate:           10, Burst: 20, Drain: time.Minute, MountRoots: []string{"/srv/a", "/srv/b"}, MCPSessions: 8, MCPIdleTimeout: 90 * time.Second,
		MCPTools: []string{"default", "git", "file_download"}, MCPConfig: "/etc/sandpit/mcp.json",
	}
	want.Manager = config.Manager{
		MaxSandboxes: 7, MaxSaved: 9, MaxSavedBytes: 3 << 30, MaxVolumes: 3, MaxVolumeBytes: 7 << 30, MaxSnapshots: 4, MaxSnapshotBytes: 2 << 30, MaxCheckpointBytes: 5 << 30, MaxCheckpointAge: 48 * time.Hour,
		MaxTemplates: 7, MaxTemplateBytes: 6 << 30, MaxBuilds: 3, BuildTimeout: 90 * time.Second, MaxUploadBytes: 3 << 30, MaxUploadTotal: 9 << 30, IdleTimeout: time.Minute, IdleAction: "stop", CleanupInterval: 30 * time.Second, CreateTimeout: 20 * time.Second,
		CallTimeout: 10 * time.Second, Parallel: 2, Lifetime: 2 * time.Hour, Remember: 5 * time.Second,
		DeleteOnStop: true, OwnerQuota: 3, Quotas: map[string]int{"alice": 5}, LabelQuotas: map[string]int{"team=red": 6},
	}
	want.Usage = config.Usage{Memory: 80, Disk: 95, PIDs: 100, Action: "kill", Sustained: 5 * time.Minute}
	want.Audit = config.Audit{MaxAge: 720 * time.Hour, MaxSize: 2 << 20, ExportDir: "/srv/audit", MaxExportSize: 3 << 20}
	want.Queue = config.Queue{Provider: "redis", RedisURL: "rediss://u:p4ss@redis:6380/2", RedisCA: "/etc/ca.pem", Name: "mine"}
	want.Pools = []config.Pool{
		{Image: "python:3.12-slim", Size: 2, Max: 4, Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2, PIDs: 64}, Hostname: "box", NetworkEnabled: true},
		{Size: 1},
	}
	want.Log = config.Log{Level: slog.LevelWarn, Format: "json"}
	want.Telemetry.Metrics, want.Telemetry.MetricsListen, want.Telemetry.MetricsToken = false, "127.0.0.1:9464", "0123456789abcdef"
	want.Telemetry.MetricsSandboxes = 7
	c.Image.DockerConfig, c.StateDir, c.CacheDir, c.RuntimeDir, c.TempDir, c.Home, c.File, c.Sources = "", "", "", "", "", "", "", want.Sources
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestServerVariables(t *testing.T) {
	t.Parallel()
	c := load(t, user(serverFile,
		"SANDPIT_SERVER_LISTEN=none", "SANDPIT_SERVER_SOCKET=/run/x.sock", "SANDPIT_SERVER_NAMES=a,b.c", "SANDPIT_SERVER_KEYLESS=1",
		"SANDPIT_SERVER_MOUNT_ROOTS=/a:/b", "SANDPIT_MANAGER_QUOTAS=bob=1 eve=0", "SANDPIT_MANAGER_LABEL_QUOTAS=a=b=3",
		"SANDPIT_POOL=localhost:5000/x:1=3 host=1", "SANDPIT_LOG_LEVEL=debug", "SANDPIT_API_KEY=e2b_env", "SANDPIT_URL=unix:///run/s.sock",
		"SANDPIT_QUEUE_PROVIDER=sqlite", "SANDPIT_MANAGER_LIFETIME=0", "LOG_LEVEL=ERROR"))
	s := c.Server
	if s.Listen != "none" || s.Socket != "/run/x.sock" || !s.Keyless || c.APIKey.Reveal() != "e2b_env" || c.URL != "unix:///run/s.sock" ||
		c.Queue.Provider != config.QueueSQLite || c.Manager.Lifetime != 0 || c.Log.Level != slog.LevelDebug {
		t.Errorf("config = %+v", c)
	}
	for what, diff := range map[string]string{
		"names":  cmp.Diff([]string{"a", "b.c"}, s.Names),
		"roots":  cmp.Diff([]string{"/a", "/b"}, s.MountRoots),
		"quotas": cmp.Diff(map[string]int{"bob": 1, "eve": 0}, c.Manager.Quotas),
		"labels": cmp.Diff(map[string]int{"a=b": 3}, c.Manager.LabelQuotas),
		"pools":  cmp.Diff([]config.Pool{{Image: "localhost:5000/x:1", Size: 3}, {Image: "host", Size: 1}}, c.Pools),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestServerDefaults(t *testing.T) {
	t.Parallel()
	c := load(t, user("", "XDG_RUNTIME_DIR=/run/user/1000"))
	if c.Server.Listen != "127.0.0.1:8090" || c.Server.Socket != "/run/user/1000/sandpit/sandpit.sock" || c.Provider != "gvisor" ||
		c.URL != "" || c.Queue.Name != "sandbox_lifecycle" || c.Queue.MaxRetries != 3 || c.Manager.MaxSandboxes != 100 ||
		c.Manager.IdleTimeout != time.Hour || c.Manager.IdleAction != "suspend" || c.Manager.CleanupInterval != 5*time.Minute || c.Telemetry.Traces.Endpoint != "" {
		t.Errorf("config = %+v", c)
	}
	for text, want := range map[string]bool{"": false, "[server]\nkeyless = true\n": true} {
		o := user(text)
		if o.UID = 0; load(t, o).Server.Keyless != want {
			t.Errorf("%q: root's server is keyless = %v, want %v", text, !want, want)
		}
	}
	if c := load(t, user("[server]\nrate = 1000\n")); c.Server.Burst != 1000 {
		t.Errorf("burst = %d, want no less than the rate", c.Server.Burst)
	}
}

func TestServerProblems(t *testing.T) {
	t.Parallel()
	file := "/home/u/.config/sandpit/config.toml:"
	for text, want := range map[string]string{
		"url = 'ftp://x'":                            `1: url: "ftp://x" is not the address of a server; use for example http://127.0.0.1:8090 or unix:///run/sandpit/sandpit.sock`,
		"url = 'http://u:secret@x'":                  `1: url: is not the address of a server; use for example http://127.0.0.1:8090 or unix:///run/sandpit/sandpit.sock`,
		"api_key = 'sec ret'":                        `1: api_key: is not an API key; use the secret that sandpit key create printed`,
		"provider = ''":                              `1: provider: "" is not a name; use letters, digits, '.', '_' and '-', at most 64`,
		"[server]\nlisten = '8090'":                  `2: server.listen: "8090" is not an address to listen on; use for example 127.0.0.1:8090, or none`,
		"[server]\nlisten = 'localhost:http'":        `2: server.listen: "localhost:http" is not an address to listen on; use for example 127.0.0.1:8090, or none`,
		"[server]\nsocket = 's'":                     `2: server.socket: "s" is not an absolute path; it must start with /, or be none`,
		"[server]\nnames = ['http://x']":             `2: server.names: "http://x" is not a host name; write it without a scheme and a port`,
		"[usage]\ninterval = -1":                     `2: usage.interval: -1 is below zero; use 0 for never`,
		"[usage]\nmemory = 101":                      `2: usage.memory: 101 is not a number of percent; use 0 to 100`,
		"[usage]\naction = 'stop'":                   `2: usage.action: "stop" is not one of warn, kill`,
		"[server]\nmount_roots = ['x']":              `2: server.mount_roots: "x" is not an absolute path; it must start with /`,
		"[server]\nmax_body = '1k'":                  `2: server.max_body: "1k" is too small; use at least 4k`,
		"[server]\nrate = 0":                         `2: server.rate: 0 is not a number of requests; use 1 to 1000000`,
		"[server]\nmemory = '1k'":                    `2: server.memory: "1k" is too small; use at least 1m`,
		"[server]\ntrusted_proxies = ['proxy']":      `2: server.trusted_proxies: "proxy" is not an address; use for example 10.0.0.5 or 192.168.1.0/24`,
		"[server]\nmax_requests = -1":                `2: server.max_requests: -1 is not a number of requests; use 0 to 1000000`,
		"[telemetry]\nmetrics_sandboxes = 10001":     `2: telemetry.metrics_sandboxes: 10001 is not a number of sandboxes; use 0 to 10000`,
		"[telemetry]\nmetrics_token = 'secret'":      `2: telemetry.metrics_token: is not a token; use 16 to 512 letters, digits and other visible ASCII characters`,
		"[server]\ntls_key = '/k'":                   `2: server.tls_key: needs server.tls_cert, too`,
		"[server]\ntls_cert = '/k'":                  `2: server.tls_cert: needs server.tls_key, too`,
		"[server]\ntls = 'on'":                       `2: server.tls: "on" is not one of off, files, local, auto`,
		"[server]\ntls = 'files'":                    `2: server.tls: is files; say which with server.tls_cert and server.tls_key`,
		"[server]\ntls = 'auto'":                     `2: server.tls: is auto; name the server in server.names, without "*"`,
		"[server]\ntls = 'auto'\nnames = ['*.a.b']":  `2: server.tls: is auto; name the server in server.names, without "*"`,
		"[server]\nlisten = 'none'\ntls = 'local'":   `3: server.tls: TLS local needs an address, but server.listen is "none"`,
		"[server]\nacme_email = 'x'":                 `2: server.acme_email: "x" is not an e-mail address; use for example admin@example.com`,
		"[server]\nacme_directory = 'http://secret'": `2: server.acme_directory: is not the address of an ACME directory; use for example https://acme.example.com/directory`,
		"ca = 'ca.pem'":                              `1: ca: "ca.pem" is not an absolute path; it must start with /`,
		"[ssh]\nlisten = '2222'":                     `2: ssh.listen: "2222" is not an address to listen on; use for example 127.0.0.1:8090, or none`,
		"[ssh]\nidle_timeout = 0":                    `2: ssh.idle_timeout: 0 is too short; use at least 1, or omit it for 3600`,
		"[ssh]\nmax_connections = 0":                 `2: ssh.max_connections: 0 is not a number of connections; use 1 to 10000`,
		"[server]\nlisten = 'none'\nsocket = 'none'": `2: server.listen: both server.listen and server.socket are "none", so no client could reach the server`,
		"[server]\nrate = 9\nburst = 3":              `3: server.burst: is below server.rate, which then cannot be reached`,
		"[manager]\nlifetime = -1":                   `2: manager.lifetime: -1 is below zero; use 0 for ever`,
		"[manager]\nquotas = { a = -1 }":             `2: manager.quotas: "a": -1 is not a number of sandboxes; use 0 to 1000000`,
		"[manager]\nlabel_quotas = { a = 1 }":        `2: manager.label_quotas: "a": not a name with a limit; use for example { "team=red" = 5 }`,
		"[manager]\nidle_action = \"delete\"":        `2: manager.idle_action: "delete" is not one of suspend, stop, pause, kill`,
		"[manager]\nidle = 1":                        `2: manager.idle: unknown key; did you mean idle_timeout?`,
		"[queue]\nprovider = 'none'":                 `2: queue.provider: "none" is not one of sqlite, redis`,
		"[queue]\nprovider = 'redis'":                `2: queue.provider: is redis; say where it is with queue.redis_url`,
		"[queue]\nredis_url = 'http://secret'":       `2: queue.redis_url: is not the address of a Redis server; use for example redis://localhost:6379`,
		"[queue]\nmax_retries = 11":                  `2: queue.max_retries: 11 is not a number of retries; use 0 to 10`,
		"[log]\nlevel = 'loud'":                      `2: log.level: "loud" is not one of debug, info, warn, error`,
		"[pool]\nsize = 1":                           `1: pool: is not a list; write [[pool]] on a line of its own above each entry`,
		"pool = 3":                                   `1: pool: is not a list; write [[pool]] on a line of its own above each entry`,
		"[[pool]]\nsize = 1\n[[pool]]\nsise = 1":     `3: pool: entry 2: sise: unknown key; did you mean size?`,
		"[[pool]]\nimage = 'host'":                   `1: pool: entry 1: is empty; give it a size, or a max to learn from demand`,
		"[[pool]]\nsize = 3\nmax = 2":                `1: pool: entry 1: max 2 is below size 3`,
		"[[pools]]\nsize = 3":                        `1: pools: unknown section; did you mean [pool]?`,
		"[servr]":                                    `1: servr: unknown section; did you mean [server]?`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff([]string{file + want}, problems(t, user(text))); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// Short names of other programs' sections are near to ours.
func TestNeighboursOfOurSections(t *testing.T) {
	t.Parallel()
	c := load(t, user("[llm]\n[search]\n[mcp]\n[browser]\n[runflow]\n[tool]\nx = 1\n"))
	if len(c.Ignored) == 0 {
		t.Error("nothing was ignored")
	}
}

func TestVariablesOfOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		environ         []string
		url, provider   string
		format, notices string
		level           slog.Level
	}{
		"host and port":     {environ: []string{"SANDBOX_HOST=box.lan", "SANDBOX_PORT=9000"}, url: "http://box.lan:9000"},
		"host":              {environ: []string{"SANDBOX_HOST=::1"}, url: "http://[::1]:8090"},
		"port":              {environ: []string{"SANDBOX_PORT=1"}, url: "http://localhost:1"},
		"of kubernetes":     {environ: []string{"SANDBOX_PORT=tcp://10.0.0.1:80"}, url: "http://file", notices: "SANDBOX_HOST and SANDBOX_PORT are no address and are ignored"},
		"url before host":   {environ: []string{"SANDBOX_HOST=box.lan", "AGENT_INFRA_URL=http://infra:1"}, url: "http://infra:1"},
		"ours before both":  {environ: []string{"SANDBOX_HOST=x", "AGENT_INFRA_URL=http://infra:1", "SANDPIT_URL=http://ours"}, url: "http://ours"},
		"provider":          {environ: []string{"SANDBOX_PROVIDER=e2b"}, url: "http://file", provider: "e2b"},
		"ours":              {environ: []string{"SANDBOX_PROVIDER=e2b", "SANDPIT_PROVIDER=docker"}, url: "http://file", provider: "docker"},
		"level":             {environ: []string{"LOG_LEVEL=CRITICAL"}, url: "http://file", level: slog.LevelError},
		"level of others":   {environ: []string{"LOG_LEVEL=7"}, url: "http://file", notices: `LOG_LEVEL: "7" makes no sense here and is ignored`},
		"mode":              {environ: []string{"ENV_MODE=local"}, url: "http://file", format: "console"},
		"mode in use":       {environ: []string{"ENV_MODE=production"}, url: "http://file", format: "json"},
		"unknown, far away": {environ: []string{"SANDPIT_COLOUR_SCHEME=x", "SANDPIT_TEST_X=1", "SANDPIT_REQUIRE=1"}, url: "http://file", notices: "SANDPIT_COLOUR_SCHEME: unknown variable, ignored"},
		"a service of kubernetes": {environ: []string{
			"SANDPIT_SERVICE_HOST=10.0.0.1", "SANDPIT_SERVICE_PORT=80", "SANDPIT_PORT=tcp://10.0.0.1:80", "SANDPIT_PORT_80_TCP_ADDR=10.0.0.1",
			"SANDPIT_SERVER_SERVICE_HOST=10.0.0.1", "SANDPIT_SERVER_SERVICE_PORT_HTTP=80", "SANDPIT_SERVER_PORT=tcp://10.0.0.1:80",
		}, url: "http://file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, user("url = 'http://file'\nprovider = 'gvisor'\n", tc.environ...))
			if tc.provider == "" {
				tc.provider = "gvisor"
			}
			if tc.format == "" {
				tc.format = "auto"
			}
			if c.URL != tc.url || c.Provider != tc.provider || c.Log.Format != tc.format || c.Log.Level != tc.level || strings.Join(c.Notices, "\n") != tc.notices {
				t.Errorf("url %q, provider %q, format %q, level %v, notices %q", c.URL, c.Provider, c.Log.Format, c.Log.Level, c.Notices)
			}
		})
	}
	got := problems(t, user("", "SANDPIT_STATEDIR=/x", "SANDPIT_SERVER_LISTN=x", "SANDPIT_APIKEY=x", "SANDBOX_PROVIDER=a b"))
	want := []string{
		`SANDBOX_PROVIDER: "a b" is not a name; use letters, digits, '.', '_' and '-', at most 64`,
		"SANDPIT_APIKEY: unknown variable; did you mean SANDPIT_API_KEY?",
		"SANDPIT_SERVER_LISTN: unknown variable; did you mean SANDPIT_SERVER_LISTEN?",
		"SANDPIT_STATEDIR: unknown variable; did you mean SANDPIT_STATE_DIR?",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestTraces(t *testing.T) {
	t.Parallel()
	endpoint := "OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318/"
	for name, tc := range map[string]struct {
		environ []string
		want    config.Traces
		notice  string
	}{
		"off": {environ: []string{"OTEL_SERVICE_NAME=x"}},
		"on": {
			environ: []string{endpoint, "OTEL_EXPORTER_OTLP_HEADERS=a=b%20c, bad", "OTEL_RESOURCE_ATTRIBUTES=service.name=mine,zone=a", "OTEL_EXPORTER_OTLP_TIMEOUT=1500"},
			want: config.Traces{
				Endpoint: "http://otel:4318/v1/traces", Headers: map[string]config.Secret{"a": "b c"}, Timeout: 1500 * time.Millisecond,
				Service: "mine", Attributes: map[string]string{"zone": "a"},
			},
		},
		"whole address": {
			environ: []string{endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/x", "OTEL_SERVICE_NAME=s"},
			want:    config.Traces{Endpoint: "https://t/x", Headers: map[string]config.Secret{}, Timeout: 10 * time.Second, Service: "s", Attributes: map[string]string{}},
		},
		"disabled":   {environ: []string{endpoint, "OTEL_SDK_DISABLED=true"}},
		"none":       {environ: []string{endpoint, "OTEL_TRACES_EXPORTER=none"}},
		"grpc":       {environ: []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, notice: "gRPC is not spoken here"},
		"no address": {environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=otel:4317"}, notice: "is not an address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, user("", tc.environ...))
			if diff := cmp.Diff(tc.want, c.Telemetry.Traces); diff != "" {
				t.Errorf("traces (-want +got):\n%s", diff)
			}
			if got := strings.Join(c.Notices, "\n"); !strings.Contains(got, tc.notice) || tc.notice == "" && got != "" {
				t.Errorf("notices = %q, want %q", got, tc.notice)
			}
		})
	}
}

// However a configuration is printed, its secrets are not in it.
func TestSecretsAreNeverShown(t *testing.T) {
	t.Parallel()
	const password = "p4ssw0rd"
	c := load(t, user("api_key = '"+password+"'\n[image]\nauth = 'ghcr.io=u:"+password+"'\n[queue]\nredis_url = 'redis://:"+password+"@x'\n[llm]\napi_key = '"+password+"'\n[llm.a]\nmodel = 'm'\n",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://x", "OTEL_EXPORTER_OTLP_HEADERS=authorization="+password))
	text, err := json.Marshal(c.Queue)
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", slog.Any("config", c), slog.Any("key", c.APIKey))
	fmt.Fprintf(&logged, "%s %v %+v %#v %s %q", text, c, c, c, c.APIKey, c.APIKey)
	for _, d := range config.Describe(c) {
		logged.WriteString(d.Value)
	}
	shown := logged.String()
	if strings.Contains(shown, password) {
		t.Errorf("a secret is shown: %s", shown)
	}
	if !strings.Contains(shown, "(hidden)") {
		t.Error("nothing says that something is hidden")
	}
}

// Every setting is in docs/configuration.md, with its default.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	name := filepath.Join("..", "..", "..", "docs", "configuration.md")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const first, last = "<!-- settings: written by `go test ./internal/app/config -update` -->\n", "<!-- end of settings -->"
	head, rest, ok1 := strings.Cut(string(data), first)
	_, tail, ok2 := strings.Cut(rest, last)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the settings", name)
	}
	want := head + first + documentation() + last + tail
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(data), "\n")); diff != "" {
		t.Errorf("docs/configuration.md (-want +got); go test ./internal/app/config -update writes it:\n%s", diff)
	}
}

func documentation() string {
	var b strings.Builder
	section := "none"
	for _, d := range config.Describe(config.Default()) {
		now, name, found := strings.Cut(string(d.Key), ".")
		if !found {
			now, name = "", string(d.Key)
		}
		if now != section {
			section = now
			title := "### [" + section + "]"
			if section == "" {
				title = "### Above all sections"
			}
			fmt.Fprintf(&b, "\n%s\n\n| key | default | what |\n| --- | --- | --- |\n", title)
		}
		usual := d.Default
		if usual == "" {
			usual = "none"
		} else if !strings.Contains(usual, " ") {
			usual = "`" + usual + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, usual, d.About)
	}
	b.WriteString("\n")
	return b.String()
}
