package sandpit

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// Provider is a way to make sandboxes. It only places them and opens
// connections into them; what happens inside is the Guest's business.
//
// All methods may be called concurrently. Errors carry a Code; the codes named
// with a method must be used for the cases stated, others may occur.
type Provider interface {
	// Create makes the sandbox id and returns when its guest answers. The
	// sandbox can be found by List from the moment anything of it exists. When
	// Create fails, nothing of it is left.
	//
	// AlreadyExists: id is in use. Invalid: the spec can never work.
	// Unsupported: this machine or provider cannot do it. Exhausted: no room.
	// Unavailable: try again.
	Create(ctx context.Context, id ID, spec Spec) (Instance, error)

	// List returns every sandbox of this provider and state directory,
	// including those that another program made and a crash left behind.
	List(ctx context.Context) ([]Placement, error)

	// Attach returns a sandbox made earlier, by this or another program, from
	// the handle it had.
	//
	// NotFound: no such sandbox any more. Invalid: not a handle of this
	// provider.
	Attach(ctx context.Context, handle []byte) (Instance, error)

	// Close releases what the provider itself holds and waits for its
	// goroutines. It is idempotent.
	Close() error
}

// Placement is one line of Provider.List.
type Placement struct {
	ID     ID
	Handle []byte
	// Spec is what the sandbox was made from, labels included, as far as the
	// provider keeps it.
	Spec      Spec
	CreatedAt time.Time
	// CheckpointedAt is when the files were saved that Reviver.Revive begins with. Zero:
	// there are none.
	CheckpointedAt time.Time
	// SavedBytes is how many bytes of disk, or of an archive, a sandbox takes that is
	// stopped, paused on disk or archived; CheckpointBytes is how many its checkpoint takes.
	// Files of images that others have as well do not count. Zero also if that is unknown.
	SavedBytes, CheckpointBytes int64
}

// Instance is one placed sandbox. All methods may be called concurrently.
type Instance interface {
	ID() ID

	// Handle is what Attach needs after a restart. It is opaque, holds no
	// secret and fits in 4 KiB.
	Handle() []byte

	// Guest is the program inside. It is the same value on every call.
	Guest() Guest

	// HTTP reaches a TCP port inside, 101 upgrades included. It never fails by
	// itself; round trips do, with Unavailable when nothing listens and Gone
	// when the sandbox has ended.
	HTTP(port int) http.RoundTripper

	// Wait returns when the sandbox has ended, or with the context's error.
	// Many callers may wait, also after the end.
	Wait(ctx context.Context) (Exit, error)

	// Destroy ends the sandbox and removes everything of it. It is idempotent
	// and succeeds when the sandbox is already gone.
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

// Reviver starts a sandbox again that has ended by itself.
type Reviver interface {
	// Revive returns the sandbox with the same ID, handle and files, running again. The
	// Instance that is asked stays ended.
	//
	// Conflict: it has not ended. NotFound: there is nothing left of it.
	Revive(ctx context.Context) (Instance, error)
}

// Claimer gives a sandbox that was made ahead, and in which nothing has run yet, to
// somebody.
type Claimer interface {
	// Claim gives it the labels, environment, user and working directory of spec,
	// and a new key, and has the guest forget all commands. What is fixed when a sandbox is made must be as it was made:
	// image, mounts, limits, host name. After an error it is good for nothing.
	// Invalid: something fixed differs, or there is no such user.
	Claim(ctx context.Context, spec Spec) error
}

// Pauser holds a sandbox still, memory kept.
type Pauser interface {
	// Conflict: not running (Pause) or not paused (Resume).
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Archiver moves the files of a stopped sandbox to where they cost little, and
// back. Until Restore it cannot be started.
type Archiver interface {
	// Conflict: not stopped (Archive) or not archived (Restore).
	Archive(ctx context.Context) error
	Restore(ctx context.Context) error
}

// Resizer changes the limits of a running sandbox.
type Resizer interface {
	// Unsupported: a limit that cannot be enforced here.
	Resize(ctx context.Context, r Resources) error
}

// Statser measures a sandbox from outside.
type Statser interface {
	Stats(ctx context.Context) (Stats, error)
}

// NetworkPolicer replaces what an online sandbox may reach, live: connections that
// the new rules forbid are closed, all others go on.
type NetworkPolicer interface {
	// Conflict: p.Online is not as it was when the sandbox was made. Invalid: a rule
	// that cannot be understood or enforced; the old ones stay.
	SetNetworkPolicy(ctx context.Context, p NetworkPolicy) error
}

// NetworkLogger tells what was decided about a sandbox's connections.
type NetworkLogger interface {
	// NetworkLog returns the decisions whose Seq is higher than after, oldest first, as
	// far as they are remembered: at least the last thousand. Equal decisions are one
	// entry with a count, and a new Seq each time.
	NetworkLog(ctx context.Context, after int64) ([]NetworkDecision, error)
}

// NetworkInspector tells how the network of a sandbox is doing. What it tells of one
// that is offline is zero.
type NetworkInspector interface {
	// NetworkStats counts.
	NetworkStats(ctx context.Context) (NetworkStats, error)
	// TestNetwork tells what would become of a TCP connection to "name:port" or
	// "address:port", by each address that the target stands for, without connecting.
	// Invalid: the target is neither. Conflict: the sandbox is offline.
	TestNetwork(ctx context.Context, target string) ([]NetworkDecision, error)
}

// NetworkSecreter gives a sandbox's network the values that headers refer to. They
// never enter the sandbox, are kept in memory only, and end with it: a sandbox that is
// made again needs them again.
type NetworkSecreter interface {
	// SetNetworkSecrets adds and replaces secrets by their names; an empty value
	// takes one away. There is no way to read them. Invalid: a name or value that
	// cannot be. Exhausted: too many. Conflict: the sandbox is offline.
	SetNetworkSecrets(ctx context.Context, secrets map[string]string) error
}

// Resources are limits. Zero means the default of the configuration.
type Resources struct {
	// Memory is in bytes: of programs, of files kept in memory, and of the
	// sandbox's own kernel; swap included. Who goes beyond is killed.
	Memory int64 `json:"memory,omitempty"`
	// CPUs is time on processors: 0.5 is half of one.
	CPUs float64 `json:"cpus,omitempty"`
	// Disk is how many bytes may be written and kept. What goes beyond finds
	// the disk full.
	Disk int64 `json:"disk,omitempty"`
	// PIDs is how many processes and threads there may be.
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
	// Limits are those that are enforced. A field that is zero is not limited.
	Limits Resources `json:"limits"`
}

// NetworkPolicy says what a sandbox may reach. The zero value is offline.
//
// A rule is an address, a range of addresses, a name, or "*." and a name for all
// names below it; each may end in ":port". What a Deny rule matches is denied,
// whatever Allow says. If there are Allow rules, nothing else is allowed. Private
// and special addresses, and those of the machine itself, are denied unless an Allow
// rule names exactly such addresses and Inside contains it. A name stands for the
// addresses that the sandbox's own questions about it were answered with.
type NetworkPolicy struct {
	// Online gives the sandbox a network. It is fixed when the sandbox is made; the
	// rules are not, and there are none without it.
	Online bool     `json:"online,omitempty"`
	Allow  []string `json:"allow,omitempty"`
	Deny   []string `json:"deny,omitempty"`
	// Inside are addresses and ranges within which Allow may open private and special
	// addresses, and those of the machine. Default: none. A server sets it to those of
	// Allow that its administrator grants, whatever a client says.
	Inside []string `json:"inside,omitempty"`
	// Headers are set in requests by HTTPS. Default: encrypted connections are not
	// looked into.
	Headers []NetworkHeader `json:"headers,omitempty"`
	// Limits bound what passes.
	Limits NetworkLimits `json:"limits,omitzero"`
}

// NetworkHeader has a header set in each request to a host by HTTPS, in place of one
// that the sandbox may have sent. It is done outside of the sandbox, for programs that
// trust the authority which the sandbox is given for that, and only when the host has
// shown a certificate that the machine trusts. It does not allow the host: that is what
// rules are for.
type NetworkHeader struct {
	// Host is a name, or "name:port". Default port: 443.
	Host string `json:"host"`
	// Name of the header.
	Name string `json:"name"`
	// Value has "${NAME}" where a secret belongs, at least once. See NetworkSecreter.
	Value string `json:"value"`
}

// NetworkLimits bound the traffic of a sandbox. Zero means that only the provider's
// own bounds count.
type NetworkLimits struct {
	// Receive and Send are bytes a second, from and to the network.
	Receive int64 `json:"receive,omitempty"`
	Send    int64 `json:"send,omitempty"`
	// Connections is how many there may be at a time, conversations by UDP included.
	Connections int `json:"connections,omitempty"`
	// ConnectionRate is how many may be begun each second.
	ConnectionRate int `json:"connection_rate,omitempty"`
}

// NetworkStats count what a sandbox's network did since it was made.
type NetworkStats struct {
	Received    int64 `json:"received"`    // bytes from the network
	Sent        int64 `json:"sent"`        // bytes to the network
	Connections int   `json:"connections"` // that are open, conversations by UDP included
	Allowed     int64 `json:"allowed"`     // decisions
	Denied      int64 `json:"denied"`      // decisions
}

// NetworkDecision is one line of a network log.
type NetworkDecision struct {
	// Seq grows with each decision of a sandbox, not always by one.
	Seq int64 `json:"seq"`
	// At is when it was decided last.
	At time.Time `json:"at"`
	// Count is how often.
	Count int64 `json:"count"`
	// Protocol is "tcp", "udp", "icmp", "dns" or, for what happened to the network
	// itself, "gateway".
	Protocol string `json:"protocol"`
	// Address is whom the sandbox wanted to reach, with the port if there is one.
	Address string `json:"address,omitempty"`
	// Name is the peer's name, as far as it is known. The sandbox may have chosen it.
	Name    string `json:"name,omitempty"`
	Allowed bool   `json:"allowed"`
	// Reason is the rule that decided, or a few words. Never empty.
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

// Equal reports whether two policies say the same in the same order.
func (p NetworkPolicy) Equal(o NetworkPolicy) bool {
	return p.Online == o.Online && p.Limits == o.Limits && slices.Equal(p.Allow, o.Allow) &&
		slices.Equal(p.Deny, o.Deny) && slices.Equal(p.Inside, o.Inside) && slices.Equal(p.Headers, o.Headers)
}
