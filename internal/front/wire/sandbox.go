package wire

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Prefix begins the path of every call but those that tell of the server itself.
const Prefix = "/v1"

// The headers that are ours, or that mean something of ours.
const (
	// HeaderIdempotencyKey makes the making of a sandbox a request that may be sent again.
	HeaderIdempotencyKey = "Idempotency-Key"
	// HeaderRequestID names a request, in answers and in logs. One that a client
	// sends is kept.
	HeaderRequestID = "X-Request-Id"
	// HeaderCommandTimeout asks for the server's own time limit of a command that is started by
	// the guest's protocol: the value is DefaultCommandTimeout.
	HeaderCommandTimeout  = "Sandpit-Command-Timeout"
	DefaultCommandTimeout = "default"
	// HeaderKey carries an API key. "Authorization: Bearer KEY" does as well.
	HeaderKey = "X-Api-Key"
)

// Create asks for a sandbox.
type Create struct {
	Spec sandpit.Spec `json:"spec,omitzero" doc:"What the sandbox shall be."`
	// Provider is who makes it. Default: the server's.
	Provider string `json:"provider,omitempty" doc:"Who makes it, by name. Default: the server's own choice."`
	// Timeout is how many seconds it may exist. Default: the server's; below zero never ends.
	Timeout float64 `json:"timeout_seconds,omitempty" doc:"Seconds until on_timeout happens. Default: the server's; below zero: never."`
	// OnTimeout is what happens then. Default: sandpit.ActionKill.
	OnTimeout sandpit.Action `json:"on_timeout,omitempty" enum:"kill,stop,pause,suspend" doc:"What happens then. Default: kill."`
	Policy    Policy         `json:"policy,omitzero" doc:"What happens when nobody uses it, or when it is lost."`
	// Offline keeps a network from it, whatever the server's default is.
	Offline bool `json:"offline,omitempty" doc:"It gets no network, whatever the server's default is."`
	// NetworkSecrets are what headers of the spec's network refer to. They are kept in
	// memory, and never told.
	NetworkSecrets map[string]string `json:"network_secrets,omitempty" writeOnly:"true" doc:"Values that headers of spec.network refer to. They are kept in memory, and never told."`
	// Secrets are environment that only the sandbox's programs have.
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Environment of the sandbox's programs that is never told, nor in snapshots and copies. The server keeps it until the sandbox is gone."`
	// AllowPaths are paths of mounts that are refused otherwise, for administrators.
	AllowPaths []string `json:"allow_paths,omitempty" doc:"Paths of the server's machine that mounts may show although they are refused otherwise, such as home directories. For administrators."`
	// Repository is cloned before it counts as running.
	Repository *Repository `json:"repository,omitempty" doc:"What is cloned before it counts as running. If that fails, there is no sandbox."`
	// CreateTimeout is how many seconds creating it may take, from when its image is there
	// and its turn has come. Default: the server's.
	CreateTimeout float64 `json:"create_timeout_seconds,omitempty" minimum:"0" doc:"Seconds that creating the sandbox may take, once its image is available and its turn has come. Default: the server's."`
}

// Repository is cloned into a sandbox before it counts as running, by its own git and
// network.
type Repository struct {
	URL   string `json:"url" minLength:"1" doc:"An address for https, http, ssh or git, or a path inside. What it says of a user and a password is written nowhere."`
	Ref   string `json:"ref,omitempty" doc:"A branch, a tag, or a commit by its whole name. Default: the remote's own branch."`
	Dir   string `json:"dir,omitempty" doc:"Where to, relative to the working directory. Default: the repository's name."`
	Depth int    `json:"depth,omitempty" minimum:"0" doc:"Commits of history. Default: all."`
	// Username and Password are used while it is cloned, and not kept.
	Username string `json:"username,omitempty" doc:"Who asks, for http and https. Default: what tokens go with."`
	Password string `json:"password,omitempty" writeOnly:"true" doc:"A password or token, for http and https. It is used while it is cloned, and not kept."`
}

// Policy is a sandpit.Policy. Zero means never, but for IdleTimeout, where it means the
// server's default and below zero means never.
type Policy struct {
	IdleTimeout      float64        `json:"idle_timeout_seconds,omitempty" doc:"Seconds without use until idle_action. Default: the server's; below zero: never."`
	IdleAction       sandpit.Action `json:"idle_action,omitempty" enum:"kill,stop,pause,suspend" doc:"What happens to an idle sandbox; all but kill keep its files, and its next use resumes it. Default: the server's, which is suspend (paused on disk), or stop or pause where it cannot be suspended."`
	AutoStop         float64        `json:"auto_stop_seconds,omitempty" minimum:"0" doc:"Seconds without use until it is stopped. Default: never."`
	AutoSuspend      float64        `json:"auto_suspend_seconds,omitempty" minimum:"0" doc:"Seconds without use, or paused in memory, until it is suspended (paused on disk). Using it then resumes it. Default: never."`
	AutoArchive      float64        `json:"auto_archive_seconds,omitempty" minimum:"0" doc:"Seconds stopped until it is archived. Default: never."`
	AutoDelete       float64        `json:"auto_delete_seconds,omitempty" minimum:"0" doc:"Seconds stopped or archived until it is deleted. Default: never."`
	CheckpointEvery  float64        `json:"checkpoint_every_seconds,omitempty" minimum:"0" doc:"Seconds between two times that the files of a running one are saved, which it begins with if it is recreated. Default: never."`
	WakeOnUse        bool           `json:"wake_on_use,omitempty" doc:"Using it while it is paused or stopped resumes it, whatever paused or stopped it. Without this, only one that was idle resumes."`
	Recreate         int            `json:"recreate,omitempty" minimum:"0" maximum:"100" doc:"How often it is made again after it vanished, with its files where its provider still has them. Default: never."`
	IgnoreBackground bool           `json:"ignore_background,omitempty" doc:"Lets it be idle while programs run in it."`
}

// PolicyOf returns a policy as it is sent.
func PolicyOf(p sandpit.Policy) Policy {
	return Policy{
		IdleTimeout: p.IdleTimeout.Seconds(), IdleAction: p.IdleAction, AutoStop: p.AutoStop.Seconds(),
		AutoSuspend: p.AutoSuspend.Seconds(), AutoArchive: p.AutoArchive.Seconds(), AutoDelete: p.AutoDelete.Seconds(),
		CheckpointEvery: p.CheckpointEvery.Seconds(), WakeOnUse: p.WakeOnUse, Recreate: p.Recreate,
		IgnoreBackground: p.IgnoreBackground,
	}
}

// Lease replaces the deadline of a sandbox.
type Lease struct {
	// Timeout is seconds from now; below zero means never. Deadline goes before it.
	Timeout  float64        `json:"timeout_seconds,omitempty" doc:"Seconds from now; below zero: never."`
	Deadline time.Time      `json:"deadline,omitzero" doc:"When, instead of timeout_seconds."`
	Action   sandpit.Action `json:"action,omitempty" enum:"kill,stop,pause,suspend" doc:"What happens then. Default: what was chosen before, at first kill."`
}

// Name replaces the name of a sandbox.
type Name struct {
	Name string `json:"name" doc:"The new name: at most 63 letters, digits, and after the first one also - _ and dots. Empty for none."`
}

// Labels replaces the labels of a sandbox.
type Labels struct {
	Labels map[string]string `json:"labels" doc:"All labels that it shall have."`
}

// NewVolume asks for a volume.
type NewVolume struct {
	Name string `json:"name" minLength:"1" maxLength:"63" doc:"Letters, digits, and inside also - _ and dots."`
	// Provider is who keeps it. Default: the server's.
	Provider string `json:"provider,omitempty" doc:"Who keeps it; only its sandboxes can have it. Default: the server's own choice."`
}

// ContentTypeSnapshot is that of an exported snapshot.
const ContentTypeSnapshot = "application/octet-stream"

// NewSnapshot asks for a snapshot.
type NewSnapshot struct {
	Sandbox sandpit.ID `json:"sandbox" doc:"What is to be saved. It runs, or is paused."`
	// Name is what the snapshot is called. Default: nothing.
	Name string `json:"name,omitempty" maxLength:"63" doc:"Letters, digits, and inside also - _ and dots. Default: none."`
}

// Fork asks for copies of a sandbox.
type Fork struct {
	Count int `json:"count,omitempty" minimum:"0" maximum:"100" doc:"How many. Default: 1."`
	// Labels and Env are added to those of the sandbox.
	Labels map[string]string `json:"labels,omitempty" doc:"Labels besides those of the sandbox."`
	Env    map[string]string `json:"env,omitempty" doc:"Environment besides that of the sandbox, for commands that are started from then on."`
	// Secrets are those of the copies.
	Secrets map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Environment that is never told. Copies do not have the sandbox's secrets."`
}

// Rollback asks for a sandbox to be what a snapshot of it was.
type Rollback struct {
	Snapshot string `json:"snapshot" minLength:"1" maxLength:"63" doc:"Its ID or name."`
}

// Page is a part of a list.
type Page[T any] struct {
	Items []T `json:"items" nullable:"false" doc:"What was found, in order."`
	// Next is what the next call gives as its cursor; "" means that this was the last page.
	Next string `json:"next_cursor,omitempty" doc:"The cursor of the next page; absent on the last one."`
}

// Pool is how a pool is doing.
type Pool struct {
	Provider string       `json:"provider"`
	Spec     sandpit.Spec `json:"spec"`
	Size     int          `json:"size" doc:"How many wait at least."`
	Max      int          `json:"max" doc:"How many wait at most, if the pool learns."`
	Ready    int          `json:"ready"`
	Making   int          `json:"making"`
}

// Provider is one of the places that make sandboxes.
type Provider struct {
	Name      string   `json:"name"`
	Default   bool     `json:"default,omitempty" doc:"Used when a request names none."`
	Available bool     `json:"available"`
	Abilities []string `json:"abilities,omitempty" doc:"What it can do besides making sandboxes."`
	// Reason says why it is not available, Endpoint where it was looked for, Hint what to do.
	Reason   string `json:"reason,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// Stats say what the server is busy with. The keys are those of the manager.
type Stats struct {
	TotalSandboxes   int     `json:"total_sandboxes"`
	ActiveOperations int     `json:"active_operations"`
	MaxSandboxes     int     `json:"max_sandboxes"`
	IdleTimeout      float64 `json:"idle_timeout" doc:"Seconds."`
	CleanupInterval  float64 `json:"cleanup_interval" doc:"Seconds."`
	IsShuttingDown   bool    `json:"is_shutting_down"`
}

// Version says what the server is.
type Version struct {
	Sandpit string `json:"sandpit"`
	GVisor  string `json:"gvisor,omitempty"`
	Guest   string `json:"guest,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	URL     string `json:"url,omitempty" doc:"The address at which the server listens, from its machine; for administrators."`
}
