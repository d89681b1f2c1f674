package sandpit

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ID names a sandbox for its whole life: 20 lower-case letters and digits, so
// that it fits into a host name beside a port.
type ID string

var idPattern = regexp.MustCompile(`^[a-z][a-z0-9]{19}$`)

// NewID returns an ID with 95 bits of randomness.
func NewID() ID {
	raw := make([]byte, 12)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return ID("s" + strings.ToLower(base32.StdEncoding.EncodeToString(raw))[:19])
}

// Validate returns an Invalid error unless id has the form NewID gives it. Use
// it on every ID that comes from outside: IDs become file names.
func (id ID) Validate() error {
	if !idPattern.MatchString(string(id)) {
		return Errorf(Invalid, "sandbox id %q: want 20 lower-case letters and digits", string(id))
	}
	return nil
}

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// CheckName returns an Invalid error unless name can be that of a sandbox: 1 to 63 letters,
// digits, and after the first one also "-", "_" and ".". A name must not look like an ID.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return WithHint(Errorf(Invalid, "invalid name %.100q", name),
			"use letters, digits, and after the first one also - _ and dots, at most 63 in all")
	}
	if ID(name).Validate() == nil {
		return WithHint(Errorf(Invalid, "invalid name %q: it looks like the ID of a sandbox", name), "use another one, such as "+name[:10])
	}
	return nil
}

// OwnerLabel is the label by which a manager tells a provider the owner of a sandbox. Owners
// share a machine's CPU; a sandbox without an owner gets a share to itself.
const OwnerLabel = "sandpit.owner"

// Spec says what a sandbox shall be. The zero value of a field means the
// default stated with it. A Spec is a value: nothing keeps the caller's maps.
type Spec struct {
	// Name is for people, as CheckName wants it. A server allows it once for each owner.
	// Default: none.
	Name string `json:"name,omitempty"`
	// Image is the root file system. Default: HostImage.
	Image Image `json:"image,omitempty"`
	// Labels are the caller's own marks, found again by List.
	Labels map[string]string `json:"labels,omitempty"`
	// Env is given to every process. Default: PATH, HOME and the like only.
	Env map[string]string `json:"env,omitempty"`
	// User runs processes that name no other: a name, a uid, or uid:gid as
	// known inside. Default: root of the sandbox, which is nobody outside.
	User string `json:"user,omitempty"`
	// WorkDir is where processes start; it is made if missing. HomeDir is the home of
	// each process's user. Default: that of the image, else DefaultWorkDir.
	WorkDir string `json:"work_dir,omitempty"`
	// Mounts are directories of the machine, or volumes, to be seen inside. Default:
	// none.
	Mounts []Mount `json:"mounts,omitempty"`
	// Resources are the limits asked for. One that cannot be enforced makes
	// Create fail with Unsupported; a default one is then left out and reported.
	Resources Resources `json:"resources,omitzero"`
	// Hostname is the name inside. Default: "sandpit".
	Hostname string `json:"hostname,omitempty"`
	// Network is what the sandbox may reach. Default: nothing. Create fails with
	// Invalid for rules that cannot be understood, and with Unsupported where sandboxes
	// cannot be online.
	Network NetworkPolicy `json:"network,omitzero"`
	// Ports are those that are reached at addresses of the machine. Whoever answers for
	// the sandbox opens them; providers do not look at them. Default: none.
	Ports []Port `json:"ports,omitempty"`
	// Template is which template it is made of. Whoever answers for the sandbox says so;
	// what others say of it does not count. Default: none.
	Template TemplateOrigin `json:"template,omitzero"`
	// Secrets are the names of environment that is kept from everybody but the sandbox's
	// programs. Whoever answers for it says so, and gives the values to its Guest;
	// snapshots of such a sandbox are of its files only, since its programs have them in
	// memory. Default: none.
	Secrets []string `json:"secrets,omitempty"`
}

// DefaultWorkDir is where processes start when nothing else is said.
const DefaultWorkDir = "/workspace"

// HomeDir stands for the home of whoever a process runs as.
const HomeDir = "~"

// Clone returns a copy that shares nothing with s.
func (s Spec) Clone() Spec {
	s.Labels = maps.Clone(s.Labels)
	s.Env = maps.Clone(s.Env)
	s.Mounts = append([]Mount(nil), s.Mounts...)
	s.Network = s.Network.Clone()
	s.Ports = append([]Port(nil), s.Ports...)
	s.Secrets = append([]string(nil), s.Secrets...)
	return s
}

// SameMachine reports whether a sandbox made from s could be one made from o: what
// is fixed when a sandbox is made, which is its image, mounts, limits, host name and
// whether it is online, is the same.
func (s Spec) SameMachine(o Spec) bool {
	return cmp.Or(s.Image, HostImage) == cmp.Or(o.Image, HostImage) &&
		s.Hostname == o.Hostname && s.Resources == o.Resources && s.Network.Online == o.Network.Online && slices.Equal(s.Mounts, o.Mounts)
}

// Mount shows a directory or file of the machine, or a volume, inside a sandbox.
type Mount struct {
	// Temporary asks for a new, empty directory of the machine, which every user inside
	// can write and which is removed with the sandbox. Whoever answers for the sandbox
	// makes it, and Source then tells where it is; to a Provider it is a Source like any
	// other.
	Temporary bool `json:"temporary,omitempty"`
	// Keep leaves a temporary directory where it is when the sandbox is removed.
	Keep bool `json:"keep,omitempty"`
	// Source is an absolute path on the machine, links already resolved: where there
	// is a link by then, the sandbox is not made. Default: it is a volume.
	Source string `json:"source,omitempty"`
	// Volume is the name of a volume instead: one of the sandbox's owner's, or, to a
	// Provider, one of its own.
	Volume string `json:"volume,omitempty"`
	// Target is an absolute path inside.
	Target string `json:"target"`
	// ReadOnly keeps the sandbox from writing.
	ReadOnly bool `json:"read_only,omitempty"`
}

// Sandbox is what is known about one sandbox.
type Sandbox struct {
	ID    ID    `json:"id"`
	Spec  Spec  `json:"spec"`
	Lease Lease `json:"lease"`
	State State `json:"state,omitempty"`
	// Reason says why it is in its state, if that was not simply asked for.
	Reason string `json:"reason,omitempty"`
	// Suspended says that its memory is on disk while it is paused.
	Suspended bool `json:"suspended,omitempty"`
	// CheckpointedAt is when the files were saved that it would begin with after a crash. Zero:
	// they were not, or are not there any more, which the server finds out in a while.
	CheckpointedAt time.Time `json:"checkpointed_at,omitzero"`
	// Provider names who made it, where there are several to choose from.
	Provider  string    `json:"provider,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// LastUsedAt is the end of its latest use, about.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	// ChangedAt is when it came into its state.
	ChangedAt time.Time `json:"changed_at,omitzero"`
	// Policy says what happens to it when nobody uses it.
	Policy Policy `json:"policy,omitzero"`
	// Next is what happens to it next without a request. The zero value: nothing, or not while
	// it is in use.
	Next Upcoming `json:"next,omitzero"`
	// ResumesOnUse says that it is paused or stopped, and that using it resumes it.
	ResumesOnUse bool `json:"resumes_on_use,omitempty"`
}

// Lease is the reason a sandbox may exist.
type Lease struct {
	// Owner is who asked for it.
	Owner string `json:"owner,omitempty"`
	// Deadline is when Action happens. The zero time means never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Action is what happens at the deadline. Default: ActionKill.
	Action Action `json:"action,omitempty"`
}

// Action is what happens to a sandbox without a request.
type Action string

// The actions.
const (
	ActionKill  Action = "kill"  // destroyed, files lost
	ActionStop  Action = "stop"  // processes end, files stay
	ActionPause Action = "pause" // memory and files stay, in memory
	// ActionSuspend keeps memory and files on disk, and frees the memory.
	ActionSuspend Action = "suspend"
	// ActionArchive moves the files of a stopped sandbox to other storage. It is what a Policy
	// has happen, and no choice for a deadline or an idle sandbox.
	ActionArchive Action = "archive"
)

// Exit says how a sandbox ended.
type Exit struct {
	// Known is false when the sandbox is gone and nobody saw how.
	Known bool `json:"known"`
	// Code is the exit code of its first process; meaningful if Known.
	Code int `json:"code,omitempty"`
	// Reason is one sentence for people. Never empty.
	Reason string `json:"reason"`
}
