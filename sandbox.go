package sandpit

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"
	"maps"
	"slices"
	"strings"
	"time"
)

// ID identifies a sandbox for its whole life: 20 lower-case letters and digits, which fit
// into a host name beside a port.
type ID string

var idPattern = newPattern(`^[a-z][a-z0-9]{19}$`)

// NewID returns an ID with 95 bits of randomness.
func NewID() ID {
	raw := make([]byte, 12)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return ID("s" + strings.ToLower(base32.StdEncoding.EncodeToString(raw))[:19])
}

// Validate returns an Invalid error unless id has the form NewID gives it. Use
// it on every ID from outside: IDs become file names.
func (id ID) Validate() error {
	if !idPattern().MatchString(string(id)) {
		return Errorf(Invalid, "sandbox id %q: want 20 lower-case letters and digits", string(id))
	}
	return nil
}

var namePattern = newPattern(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// CheckName returns an Invalid error unless name is a valid sandbox name: 1 to 63 letters and
// digits, and after the first one also "-", "_" and ".". A name must not look like an ID.
func CheckName(name string) error {
	if !namePattern().MatchString(name) {
		return WithHint(Errorf(Invalid, "invalid name %.100q", name),
			"use letters, digits, and after the first one also - _ and dots, at most 63 in all")
	}
	if ID(name).Validate() == nil {
		return WithHint(Errorf(Invalid, "invalid name %q: it looks like the ID of a sandbox", name), "use another one, such as "+name[:10])
	}
	return nil
}

// OwnerLabel is the label in which a manager passes the owner of a sandbox to a provider.
// Owners share a machine's CPU; a sandbox without an owner has a share of its own.
const OwnerLabel = "sandpit.owner"

// Spec describes a sandbox to create. The zero value of a field means the default stated
// with it. A Spec is a value: no function keeps the caller's maps.
type Spec struct {
	// Name is a name for people; see CheckName. It is unique for an owner on a server.
	// Default: none.
	Name string `json:"name,omitempty"`
	// Image is the root file system. Default: HostImage.
	Image Image `json:"image,omitempty"`
	// Labels are the caller's own key-value pairs. List can filter by them.
	Labels map[string]string `json:"labels,omitempty"`
	// Env is the environment of every process. Default: only PATH, HOME and the like.
	Env map[string]string `json:"env,omitempty"`
	// User is the account for processes that name no other: a name, a uid, or uid:gid, as
	// known inside. Default: root of the sandbox, which has no rights outside.
	User string `json:"user,omitempty"`
	// WorkDir is the directory processes start in; it is created if missing. HomeDir is
	// the home of each process's user. Default: that of the image, else DefaultWorkDir.
	WorkDir string `json:"work_dir,omitempty"`
	// Mounts are directories of the machine, or volumes, shown inside. Default: none.
	Mounts []Mount `json:"mounts,omitempty"`
	// Resources are the limits. Create fails with Unsupported if a given limit cannot be
	// enforced; a default limit is then omitted and reported.
	Resources Resources `json:"resources,omitzero"`
	// Hostname is the name inside. Default: "sandpit".
	Hostname string `json:"hostname,omitempty"`
	// Network is what the sandbox may reach. Default: nothing. Create fails with Invalid
	// for invalid rules, and with Unsupported where sandboxes cannot be online.
	Network NetworkPolicy `json:"network,omitzero"`
	// Ports are published at addresses of the machine. The manager opens them; providers
	// ignore them. Default: none.
	Ports []Port `json:"ports,omitempty"`
	// Template is the template the sandbox is created from. The manager sets it; a
	// client's value is ignored. Default: none.
	Template TemplateOrigin `json:"template,omitzero"`
	// Expiry is what the provider does to the sandbox on its own. The manager sets it from the
	// deadline and the policy; providers on this machine ignore it.
	Expiry Expiry `json:"-"`
	// Secrets are the names of variables that only the sandbox's programs can see. The
	// manager sets them and passes the values to the Guest. A snapshot of such a sandbox
	// contains files only, because its programs have the values in memory. Default: none.
	Secrets []string `json:"secrets,omitempty"`
}

// DefaultWorkDir is the working directory if neither the Spec nor the image names one.
const DefaultWorkDir = "/workspace"

// HomeDir stands for the home directory of the user that a process runs as.
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

// FileDirs returns the directories for GuestObserver.Confine that a sandbox's files are confined
// to: its working directory and its mounts.
func (s Spec) FileDirs() []string {
	dirs := []string{"."}
	for _, m := range s.Mounts {
		dirs = append(dirs, m.Target)
	}
	return dirs
}

// SameMachine reports whether s and o agree in everything that cannot change after a sandbox
// is created: image, mounts, limits, host name and whether it is online.
func (s Spec) SameMachine(o Spec) bool {
	return cmp.Or(s.Image, HostImage) == cmp.Or(o.Image, HostImage) &&
		s.Hostname == o.Hostname && s.Resources == o.Resources && s.Network.Online == o.Network.Online && slices.Equal(s.Mounts, o.Mounts)
}

// Mount shows a directory or file of the machine, or a volume, inside a sandbox.
type Mount struct {
	// Temporary requests a new, empty directory of the machine that every user inside can
	// write and that is removed with the sandbox. The manager creates it and sets Source;
	// to a Provider it is a Source like any other.
	Temporary bool `json:"temporary,omitempty"`
	// Keep keeps a temporary directory when the sandbox is removed.
	Keep bool `json:"keep,omitempty"`
	// Source is an absolute path on the machine with links resolved: if it leads through a
	// link by then, Create fails. Default: the mount shows a volume.
	Source string `json:"source,omitempty"`
	// Volume is the name of a volume to show instead: one of the sandbox's owner, or, to a
	// Provider, one of its own.
	Volume string `json:"volume,omitempty"`
	// Subpath is a relative path of a directory in the volume to show instead of all of it. It is
	// created if it is missing. No part of it may be a link. Default: the whole volume.
	Subpath string `json:"subpath,omitempty"`
	// Target is an absolute path inside.
	Target string `json:"target"`
	// ReadOnly prevents writes from the sandbox.
	ReadOnly bool `json:"read_only,omitempty"`
}

// Sandbox describes one sandbox.
type Sandbox struct {
	ID    ID    `json:"id"`
	Spec  Spec  `json:"spec"`
	Lease Lease `json:"lease"`
	State State `json:"state,omitempty"`
	// Reason says why it is in its state, if no request caused it.
	Reason string `json:"reason,omitempty"`
	// Suspended says that its memory is on disk while it is paused.
	Suspended bool `json:"suspended,omitempty"`
	// CheckpointedAt is the time of the checkpoint that it would start from after a crash.
	// Zero: none, or lost, which the server detects after a while.
	CheckpointedAt time.Time `json:"checkpointed_at,omitzero"`
	// Provider is the name of its provider, if the server has several.
	Provider  string    `json:"provider,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// LastUsedAt is the approximate end of its latest use.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	// ChangedAt is when it entered its state.
	ChangedAt time.Time `json:"changed_at,omitzero"`
	// Policy says what happens to it when it is idle.
	Policy Policy `json:"policy,omitzero"`
	// Next is what happens to it next without a request. The zero value: nothing, or nothing
	// while it is in use.
	Next Upcoming `json:"next,omitzero"`
	// ResumesOnUse says that it is paused or stopped and that the next request resumes it.
	ResumesOnUse bool `json:"resumes_on_use,omitempty"`
}

// Lease is the owner and the deadline of a sandbox.
type Lease struct {
	// Owner is the owner of the sandbox.
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
	// ActionSuspend saves memory and files to disk, and frees the memory.
	ActionSuspend Action = "suspend"
	// ActionArchive moves the files of a stopped sandbox to other storage. Only a Policy
	// causes it; it is not valid for a deadline or an idle sandbox.
	ActionArchive Action = "archive"
)

// Exit says how a sandbox ended.
type Exit struct {
	// Known is false if the sandbox is gone and its end was not observed.
	Known bool `json:"known"`
	// Code is the exit code of its first process; meaningful if Known.
	Code int `json:"code,omitempty"`
	// State is StateStopped, StatePaused or StateArchived if the provider has stopped the
	// sandbox by itself and it can start again: then it has not ended. Default: it has ended.
	State State `json:"state,omitempty"`
	// Reason is one sentence for people. Never empty.
	Reason string `json:"reason"`
}
