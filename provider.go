package sandpit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// Provider creates sandboxes and opens connections into them. The Guest does everything
// inside a sandbox.
//
// All methods may be called concurrently. Errors carry a Code; the codes named
// with a method must be used for the cases stated, others may occur.
type Provider interface {
	// Create creates the sandbox id and returns when its guest responds. List returns the
	// sandbox from the moment any part of it exists. When Create fails, nothing of the
	// sandbox remains.
	//
	// AlreadyExists: id is in use. Invalid: the spec can never work; with ErrDeadlineTooLate, the
	// only reason is the deadline of its expiry.
	// Unsupported: this machine or provider cannot do it. Exhausted: no capacity.
	// Unavailable: try again.
	Create(ctx context.Context, id ID, spec Spec) (Instance, error)

	// List returns every sandbox of this provider and state directory, including those
	// that another program created and those left by a crash.
	List(ctx context.Context) ([]Placement, error)

	// Attach returns a sandbox that this or another program created earlier, by its
	// handle.
	//
	// NotFound: the sandbox no longer exists. Invalid: not a handle of this
	// provider.
	Attach(ctx context.Context, handle []byte) (Instance, error)

	// Close releases the provider's own resources and waits for its goroutines. It is
	// idempotent.
	Close() error
}

// Placement is one entry of Provider.List.
type Placement struct {
	ID     ID
	Handle []byte
	// Spec is the Spec of the sandbox, labels included, as far as the provider keeps
	// it.
	Spec      Spec
	CreatedAt time.Time
	// State is the state that the provider has of the sandbox, if that can change without a
	// request to it. Default: unknown.
	State State
	// CheckpointedAt is the time of the checkpoint that Reviver.Revive starts from. Zero:
	// it has no checkpoint.
	CheckpointedAt time.Time
	// SavedBytes is how many bytes the saved state of a stopped, suspended or archived
	// sandbox takes; CheckpointBytes is how many its checkpoint takes. Files of shared
	// images do not count. Zero also means unknown.
	SavedBytes, CheckpointBytes int64
}

// Instance is a provider's handle to one sandbox. All methods may be called concurrently.
type Instance interface {
	ID() ID

	// Handle returns what Attach needs after a restart. It is opaque, contains no secret
	// and fits in 4 KiB.
	Handle() []byte

	// Guest returns the guest of the sandbox, the same value on every call.
	Guest() Guest

	// HTTP returns a transport to a TCP port inside, which supports 101 upgrades. Round
	// trips fail with Unavailable when nothing listens and with Gone when the sandbox has
	// ended.
	HTTP(port int) http.RoundTripper

	// Wait returns when the sandbox has ended, or with the context's error.
	// Several callers may wait, also after the end.
	Wait(ctx context.Context) (Exit, error)

	// Destroy ends the sandbox and removes all of its data. It is idempotent and succeeds
	// when the sandbox is already gone.
	Destroy(ctx context.Context) error
}

// The interfaces below are optional abilities of an Instance.

// Dialer opens raw TCP connections to a port inside.
type Dialer interface {
	// Unavailable: nothing listens there. Gone: the sandbox has ended.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// Stopper ends the processes and keeps the files.
type Stopper interface {
	// Conflict: not running (Stop) or not stopped (Start).
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// Reviver restarts a sandbox that ended unexpectedly.
type Reviver interface {
	// Revive returns the sandbox with the same ID, handle and files, running again. This
	// Instance stays ended.
	//
	// Conflict: it has not ended. NotFound: nothing remains of it.
	Revive(ctx context.Context) (Instance, error)
}

// Claimer prepares a spare, a sandbox created in advance in which nothing has run, for the
// request that claims it.
type Claimer interface {
	// Claim sets the labels, environment, user and working directory of spec and a new
	// key, and has the guest forget all commands. Image, mounts, limits and host name of
	// spec must be those the sandbox was created with. After an error the sandbox is
	// unusable. Invalid: one of these differs, or there is no such user.
	Claim(ctx context.Context, spec Spec) error
}

// Pauser pauses a sandbox in memory and resumes it.
type Pauser interface {
	// Conflict: not running (Pause) or not paused (Resume).
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Archiver moves the files of a stopped sandbox to other storage, and back. An archived
// sandbox cannot start before Restore.
type Archiver interface {
	// Conflict: not stopped (Archive) or not archived (Restore).
	Archive(ctx context.Context) error
	Restore(ctx context.Context) error
}

// Resizer changes the limits of a sandbox that runs or is stopped. A stopped one has them from
// its next start.
type Resizer interface {
	// Resize sets the limits of r that are not zero, all or none.
	//
	// Invalid: a limit with which no sandbox can run. Conflict: it must be stopped first.
	// Unsupported: a limit that cannot be enforced, or changed, here.
	Resize(ctx context.Context, r Resources) error
}

// Statser measures a sandbox from outside.
type Statser interface {
	Stats(ctx context.Context) (Stats, error)
}

// NetworkPolicer replaces the network rules of a running online sandbox. Connections that
// the new rules forbid are closed, all others continue.
type NetworkPolicer interface {
	// Conflict: p.Online differs from what the sandbox was created with. Invalid: a rule
	// that is invalid or cannot be enforced; the old rules stay.
	SetNetworkPolicy(ctx context.Context, p NetworkPolicy) error
}

// NetworkLogger returns the network log of a sandbox.
type NetworkLogger interface {
	// NetworkLog returns the decisions whose Seq is higher than after, oldest first. At
	// least the last thousand are kept. Equal decisions are one entry with a count and a
	// new Seq each time.
	NetworkLog(ctx context.Context, after int64) ([]NetworkDecision, error)
}

// NetworkInspector measures and tests the network of a sandbox. The figures of an offline
// sandbox are zero.
type NetworkInspector interface {
	// NetworkStats returns the counters.
	NetworkStats(ctx context.Context) (NetworkStats, error)
	// TestNetwork returns the decision about a TCP connection to "name:port" or
	// "address:port" for each address of the target, without connecting.
	// Invalid: the target is neither. Conflict: the sandbox is offline.
	TestNetwork(ctx context.Context, target string) ([]NetworkDecision, error)
}

// NetworkSecreter sets the secrets that NetworkHeader values refer to. They never enter the
// sandbox, are kept in memory only, and are lost when it ends: a recreated sandbox needs
// them again.
type NetworkSecreter interface {
	// SetNetworkSecrets adds and replaces secrets by name; an empty value removes one.
	// They cannot be read back. Invalid: an invalid name or value. Exhausted: too many.
	// Conflict: the sandbox is offline.
	SetNetworkSecrets(ctx context.Context, secrets map[string]string) error
}

// Resources are limits. Zero means the default of the configuration.
type Resources struct {
	// Memory is in bytes: of programs, of files kept in memory, and of the
	// sandbox's own kernel; swap included. A program that exceeds it is killed.
	Memory int64 `json:"memory,omitempty"`
	// CPUs is processor time: 0.5 is half a processor.
	CPUs float64 `json:"cpus,omitempty"`
	// Disk is how many bytes the sandbox may store. A write beyond it fails with a full
	// disk.
	Disk int64 `json:"disk,omitempty"`
	// PIDs is the maximum number of processes and threads.
	PIDs int `json:"pids,omitempty"`
}

// Stats is one measurement.
type Stats struct {
	At         time.Time     `json:"at"`
	CPU        time.Duration `json:"cpu"`                   // used since the start, in nanoseconds
	Memory     int64         `json:"memory"`                // bytes in use
	MemoryPeak int64         `json:"memory_peak,omitempty"` // most bytes since the start, file cache included; 0 is unknown
	OOMKills   int64         `json:"oom_kills,omitempty"`   // processes killed because memory ran out
	Disk       int64         `json:"disk"`                  // bytes written and kept; what the sandbox itself says, so 0 while it is paused
	PIDs       int           `json:"pids"`                  // processes and threads
	Received   int64         `json:"received,omitempty"`    // bytes from the network
	Sent       int64         `json:"sent,omitempty"`        // bytes to the network
	// Limits are the enforced limits. Zero means unlimited.
	Limits Resources `json:"limits"`
}

// NetworkPolicy says what a sandbox may reach. The zero value is offline.
//
// A rule is an address, a range of addresses, a name, or "*." and a name for all
// names below it; each may end in ":port". A Deny rule takes precedence over Allow rules.
// If there are Allow rules, everything else is denied. Private and special addresses, and
// those of the machine itself, are denied unless an Allow rule names exactly such addresses
// and Inside contains it. A name stands for the addresses in the DNS answers that the
// sandbox received for it.
type NetworkPolicy struct {
	// Online gives the sandbox a network. It cannot change after the sandbox is created.
	// Rules need it, and can change.
	Online bool     `json:"online,omitempty"`
	Allow  []string `json:"allow,omitempty"`
	Deny   []string `json:"deny,omitempty"`
	// Inside are addresses and ranges within which Allow may open private and special
	// addresses, and those of the machine. Default: none. A server sets it to what its
	// administrator grants and ignores a client's value.
	Inside []string `json:"inside,omitempty"`
	// Headers are set in HTTPS requests. Default: encrypted connections are not
	// decrypted.
	Headers []NetworkHeader `json:"headers,omitempty"`
	// Limits bound the traffic.
	Limits NetworkLimits `json:"limits,omitzero"`
}

// NetworkHeader sets a header in each HTTPS request to a host and replaces one that the
// sandbox sent. The egress gateway sets it, outside the sandbox, for programs that trust
// the certificate authority that the sandbox receives for this, and only if the host shows
// a certificate that the machine trusts. It does not allow the host; a rule does.
type NetworkHeader struct {
	// Host is a name, or "name:port". Default port: 443.
	Host string `json:"host"`
	// Name of the header.
	Name string `json:"name"`
	// Value contains "${NAME}" in place of a secret at least once. See NetworkSecreter.
	Value string `json:"value"`
}

// NetworkLimits bound the traffic of a sandbox. Zero means the provider's own bounds.
type NetworkLimits struct {
	// Receive and Send are bytes per second, from and to the network.
	Receive int64 `json:"receive,omitempty"`
	Send    int64 `json:"send,omitempty"`
	// Connections is how many may be open at the same time, UDP flows included.
	Connections int `json:"connections,omitempty"`
	// ConnectionRate is how many may be opened per second.
	ConnectionRate int `json:"connection_rate,omitempty"`
}

// NetworkStats are counters since the sandbox was created.
type NetworkStats struct {
	Received    int64 `json:"received"`    // bytes from the network
	Sent        int64 `json:"sent"`        // bytes to the network
	Connections int   `json:"connections"` // open, UDP flows included
	Allowed     int64 `json:"allowed"`     // decisions
	Denied      int64 `json:"denied"`      // decisions
}

// NetworkDecision is one entry of a network log.
type NetworkDecision struct {
	// Seq increases with each decision of a sandbox, not always by one.
	Seq int64 `json:"seq"`
	// At is the time of the latest such decision.
	At time.Time `json:"at"`
	// Count is how often it was taken.
	Count int64 `json:"count"`
	// Protocol is "tcp", "udp", "icmp", "dns" or, for events of the network itself,
	// "gateway".
	Protocol string `json:"protocol"`
	// Address is the destination, with the port if there is one.
	Address string `json:"address,omitempty"`
	// Name is the destination's name, if known. The sandbox may have chosen it.
	Name    string `json:"name,omitempty"`
	Allowed bool   `json:"allowed"`
	// Reason is the rule that decided, or a short text. Never empty.
	Reason string `json:"reason"`
}

// Clone returns a copy that shares nothing with p.
func (p NetworkPolicy) Clone() NetworkPolicy {
	p.Allow = append([]string(nil), p.Allow...)
	p.Deny = append([]string(nil), p.Deny...)
	p.Inside = append([]string(nil), p.Inside...)
	p.Headers = append([]NetworkHeader(nil), p.Headers...)
	return p
}

// Equal reports whether two policies have the same fields and the same rules in the same
// order.
func (p NetworkPolicy) Equal(o NetworkPolicy) bool {
	return p.Online == o.Online && p.Limits == o.Limits && slices.Equal(p.Allow, o.Allow) &&
		slices.Equal(p.Deny, o.Deny) && slices.Equal(p.Inside, o.Inside) && slices.Equal(p.Headers, o.Headers)
}
