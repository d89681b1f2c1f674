package config

import (
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Secret is a text that is not to be seen. However it is printed, logged or
// encoded, it says "(hidden)".
type Secret string

const hidden = "(hidden)"

// String hides it.
func (Secret) String() string { return hidden }

// GoString hides it.
func (Secret) GoString() string { return hidden }

// LogValue hides it.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides it.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

// None turns off what a setting would otherwise open: Server.Listen, Server.Socket.
const None = "none"

// Server is the [server] section: the listener, its limits and access.
type Server struct {
	// Listen is the TCP address: a host and a port, 0 being any free one, or None.
	Listen string
	// Socket is the path of a Unix socket that only the same user can open, and that needs no key;
	// or None.
	Socket string
	// Names are host names by which clients may call the server, besides those of this machine's
	// loopback and the address it listens on.
	Names []string
	// TLS is where the server's certificates come from: TLSOff, TLSFiles, TLSLocal or TLSAuto. ""
	// is TLSFiles if TLSCert is set, else TLSOff.
	TLS string
	// TLSCert and TLSKey are files in PEM form. Both or none.
	TLSCert, TLSKey string
	// ACMEEmail, ACMEDirectory and ACMECA are for TLSAuto: an address that the authority may write
	// to, the URL of its directory, and a file of certificates in PEM form one of which must have
	// signed that of the directory.
	ACMEEmail, ACMEDirectory, ACMECA string
	// Keyless lets programs of the server's own user, and of root, that connect over TCP from this
	// machine to a loopback address in without a key, as the administrator "local".
	Keyless bool
	// MaxBody is the maximum size of a request body, except files, in bytes.
	MaxBody int64
	// MaxConnections is how many there may be at a time.
	MaxConnections int
	// MinFreeDisk is how many bytes stay free on the disks that a server writes to, but at most a
	// twentieth of each: what would take more is refused.
	MinFreeDisk int64
	// MaxConnectionsPerAddress and MaxConnectionsPerOwner are how many of them may come from one
	// address and belong to one owner. 0 means half of MaxConnections.
	MaxConnectionsPerAddress, MaxConnectionsPerOwner int
	// MaxRequests is how many may be answered at a time, and MaxRequestsPerOwner how many of one
	// owner. 0 means one for each 512 KiB of memory that the server may use, from 256 to 10000,
	// and a quarter of MaxRequests.
	MaxRequests, MaxRequestsPerOwner int
	// Memory is how many bytes requests and sessions of clients may keep in memory, and
	// MemoryPerOwner how many those of one owner. 0 means a quarter of the memory that the server
	// may use, up to 1 GiB, and a quarter of Memory.
	Memory, MemoryPerOwner int64
	// TrustedProxies are ranges of addresses of reverse proxies, such as 10.0.0.5/32, whose
	// X-Forwarded-For is trusted.
	TrustedProxies []string
	// Rate is how many requests a second each key may make, on average; Burst how many at once.
	Rate, Burst int
	// Drain is how long requests have to finish when the server ends.
	Drain time.Duration
	// MountRoots are directories of this machine that ordinary clients may mount in their
	// sandboxes, with everything below them.
	MountRoots []string
	// TemporaryMounts lets ordinary clients have temporary directories of this machine in their
	// sandboxes. The size of these is not limited.
	TemporaryMounts bool
	// MCPSessions is how many sessions of agents each owner may have at a time at /mcp.
	MCPSessions int
	// MCPIdleTimeout is how long one lasts without a request; its sandbox goes with it.
	MCPIdleTimeout time.Duration
	// MCPTools are words that choose the tools that agents are offered over MCP: default, all,
	// categories or names of tools. None means the default set.
	MCPTools []string
	// MCPConfig is a file of MCP servers whose tools sessions at /mcp and of AIO can call. "": none.
	MCPConfig string
}

// The values of Server.TLS.
const (
	TLSOff   = "off"
	TLSFiles = "files"
	TLSLocal = "local"
	TLSAuto  = "auto"
)

// SSH is the [ssh] section: how sandboxes are reached by SSH.
type SSH struct {
	// Listen is the TCP address: a host and a port, 0 being any free one, or None.
	Listen string
	// MaxConnections is how many there may be at a time, and MaxConnectionsPerOwner how many of
	// one owner, 0 meaning half of MaxConnections.
	MaxConnections, MaxConnectionsPerOwner int
	// IdleTimeout is how long a connection may carry nothing.
	IdleTimeout time.Duration
}

// Manager is the [manager] section: how many sandboxes there may be, and how long.
type Manager struct {
	// MaxSandboxes is how many there may be, stopped ones left aside.
	MaxSandboxes int
	// IdleTimeout is the time without use until IdleAction.
	IdleTimeout time.Duration
	// IdleAction is what happens to an idle sandbox: suspend, stop, pause or kill.
	IdleAction string
	// CleanupInterval is the longest time between two sweeps, in which the server performs overdue
	// actions.
	CleanupInterval time.Duration
	// CreateTimeout is how long making a sandbox may take.
	CreateTimeout time.Duration
	// CallTimeout is how long a provider may take for anything else.
	CallTimeout time.Duration
	// Parallel is how many are created or started at a time, of one owner at most half, rounded
	// up.
	Parallel int
	// Lifetime is how long a sandbox exists when its request does not say. 0 is for ever.
	Lifetime time.Duration
	// Remember is how long a deleted sandbox is remembered.
	Remember time.Duration
	// MaxVolumes is how many volumes each owner may have, 0 forbids them, and MaxVolumeBytes how
	// large they may be together.
	MaxVolumes     int
	MaxVolumeBytes int64
	// MaxSaved is how many stopped, suspended or archived sandboxes each owner may have, 0 forbids
	// them, and MaxSavedBytes how much disk they may take together, with checkpoints.
	MaxSaved      int
	MaxSavedBytes int64
	// MaxSnapshots is how many snapshots each owner may have, 0 forbids them, and MaxSnapshotBytes
	// how large they may be together.
	MaxSnapshots     int
	MaxSnapshotBytes int64
	// MaxCheckpointBytes is how large the checkpoints of all sandboxes may be together, and
	// MaxCheckpointAge how old one may become; 0 is as old as its sandbox.
	MaxCheckpointBytes int64
	MaxCheckpointAge   time.Duration
	// MaxTemplates is how many templates each owner may have, 0 forbids them, and MaxTemplateBytes
	// how large their builds may be together. MaxBuilds is how many builds run at the same time,
	// of one owner at most half, rounded up, and BuildTimeout how long one may take.
	MaxTemplates     int
	MaxTemplateBytes int64
	MaxBuilds        int
	BuildTimeout     time.Duration
	// MaxUploadBytes is how large the files may be together that clients send for each owner's
	// builds, packed and unpacked, and MaxUploadTotal those of all owners.
	MaxUploadBytes, MaxUploadTotal int64
	// DeleteOnStop has an orderly end of the server delete all sandboxes.
	DeleteOnStop bool
	// OwnerQuota is how many sandboxes each owner may have; 0 is no limit if it was set. Quotas
	// are those of single owners, LabelQuotas of sandboxes with a label "key=value".
	OwnerQuota          int
	Quotas, LabelQuotas map[string]int
}

// The values of Usage.Action.
const (
	// UsageWarn raises an event.
	UsageWarn = "warn"
	// UsageKill raises one, and stops the sandbox if the use stays high.
	UsageKill = "kill"
)

// Usage is the [usage] section: how it is watched what sandboxes use of their limits.
type Usage struct {
	// Interval is the time between two measurements of a sandbox; 0 is never.
	Interval time.Duration
	// Memory, CPU, Disk and PIDs are from how many percent of the limit on use is high; 0 is
	// never.
	Memory, CPU, Disk, PIDs int
	// Action is UsageWarn or UsageKill.
	Action string
	// Sustained is how long use must be high without a break for UsageKill.
	Sustained time.Duration
}

// Archive is the [archive] section: where the files of archived sandboxes go.
type Archive struct {
	// Dir is a directory for them.
	Dir string
	// S3 is a store that speaks the protocol of Amazon S3, instead of Dir:
	// "https://host/bucket/prefix".
	S3 string
	// S3Region is where the bucket is.
	S3Region string
	// S3CA is a file of certificates that one must have signed the store's.
	S3CA string
	// S3AccessKey and S3SecretKey give read and write access. S3 requires them.
	S3AccessKey, S3SecretKey Secret
}

// Audit is the [audit] section: how long events stay in the audit trail, and where they
// go then.
type Audit struct {
	// MaxAge is how old an event may become; 0 is any age.
	MaxAge time.Duration
	// MaxSize is how many bytes the trail may have.
	MaxSize int64
	// ExportDir is the directory that removed events are exported to.
	ExportDir string
	// MaxExportSize is how many bytes the exported files may have together.
	MaxExportSize int64
}

// The values of Queue.Provider.
const (
	QueueSQLite = "sqlite"
	QueueRedis  = "redis"
)

// Queue is the [queue] section: where it is kept what is to be done later.
type Queue struct {
	// Provider is QueueSQLite, in the state directory, or QueueRedis.
	Provider string
	// RedisURL is where the Redis server is; QueueRedis needs it. It may hold a password.
	RedisURL Secret
	// RedisCA is a file of certificates that one must have signed the server's with.
	RedisCA string
	// Name starts the names of all keys.
	Name string
	// MaxRetries is how often what failed is tried again.
	MaxRetries int
}

// Pool is one of the [[pool]] entries: sandboxes that are made ahead.
type Pool struct {
	// Provider makes them. Default: the one that is used when none is asked for.
	Provider string
	// Image is what they start from. Default: that of [sandbox].
	Image sandpit.Image
	// Size is how many wait at least, Max at most when many are asked for. From 0 to
	// 10000. Default: 0 and Size.
	Size, Max int
	// Resources are their limits. Zero fields: those of [sandbox].
	Resources sandpit.Resources
	// Hostname is their name inside. Default: "sandpit".
	Hostname string
	// NetworkEnabled says that they reach the network, even if sandbox.network_enabled is false.
	NetworkEnabled bool
}

// The values of Log.Format.
const (
	FormatAuto    = "auto"
	FormatConsole = "console"
	FormatJSON    = "json"
)

// Log is the [log] section: the server's log.
type Log struct {
	// Level is the lowest level that is logged: debug, info, warn or error.
	Level slog.Level
	// Format is FormatConsole for people, FormatJSON for machines, or FormatAuto, which is
	// FormatConsole on a terminal.
	Format string
}

// Telemetry is the [telemetry] section: metrics and traces for operators.
type Telemetry struct {
	// Metrics enables metrics at /metrics.
	Metrics bool
	// MetricsListen is a TCP address that serves only /metrics, without a key; or None.
	MetricsListen string
	// MetricsToken is what has to be shown there as "Authorization: Bearer".
	MetricsToken Secret
	// MetricsSandboxes is how many sandboxes have figures of their own, those that use the most
	// memory; 0: none.
	MetricsSandboxes int
	// Traces are where spans of requests go. They come from the OTEL_ variables of OpenTelemetry
	// only.
	Traces Traces
}

// defaultServer fills in what the sections of the server have as defaults.
func defaultServer(c *Config) {
	c.Provider, c.ProviderList = "gvisor", []string{"gvisor"}
	c.Server = Server{
		Listen: "127.0.0.1:8090", Keyless: true, MaxBody: 4 << 20, MaxConnections: 10000, MinFreeDisk: 1 << 30,
		Rate: 100, Burst: 200, Drain: 30 * time.Second, MCPSessions: 100, MCPIdleTimeout: 30 * time.Minute,
	}
	c.SSH = SSH{Listen: None, MaxConnections: 100, IdleTimeout: time.Hour}
	c.Manager = Manager{
		MaxSandboxes: 100, MaxSaved: 1000, MaxSavedBytes: 100 << 30, MaxVolumes: 20, MaxVolumeBytes: 100 << 30, MaxSnapshots: 50, MaxSnapshotBytes: 100 << 30, MaxCheckpointBytes: 100 << 30,
		MaxTemplates: 50, MaxTemplateBytes: 100 << 30, MaxBuilds: 4, BuildTimeout: time.Hour, MaxUploadBytes: 8 << 30, MaxUploadTotal: 32 << 30, IdleTimeout: time.Hour, IdleAction: "suspend", CleanupInterval: 5 * time.Minute,
		CreateTimeout: 2 * time.Minute, CallTimeout: 30 * time.Second, Parallel: 8, Remember: time.Hour,
	}
	c.Usage = Usage{Interval: 30 * time.Second, Memory: 90, CPU: 90, Disk: 90, PIDs: 90, Action: UsageWarn, Sustained: time.Minute}
	c.Audit = Audit{MaxAge: 90 * 24 * time.Hour, MaxSize: 1 << 30, MaxExportSize: 1 << 30}
	c.Queue = Queue{Provider: QueueSQLite, Name: "sandbox_lifecycle", MaxRetries: 3}
	c.Log = Log{Format: FormatAuto}
	c.Telemetry = Telemetry{Metrics: true, MetricsListen: None, MetricsSandboxes: 200}
}

// Systemd says where systemd listens. It comes from the variables that systemd sets.
type Systemd struct {
	// Socket receives the server's state. "": not wanted.
	Socket string
	// Watchdog is how often the server must notify the watchdog. 0: never.
	Watchdog time.Duration
	// PID is the process that Watchdog is for; 0 is any.
	PID int
}
