package image

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// PullPolicy says when a registry is asked.
type PullPolicy string

// The policies.
const (
	PullMissing PullPolicy = "missing" // when the image is not in the cache
	PullAlways  PullPolicy = "always"  // each time, whether the tag means another image now
	PullNever   PullPolicy = "never"

	pullOffline PullPolicy = "offline" // never, because the caller has no time to wait
)

// Options say how a Store works. The zero value of a field means its default.
type Options struct {
	// Pull is when a registry is asked. Default: PullMissing.
	Pull PullPolicy
	// Mirrors are tried in order before the registry they stand for, which is the
	// key: docker.io to localhost:5000. Default: none.
	Mirrors map[string][]string
	// Insecure are registries that may be spoken to without encryption, besides
	// those of this machine. Default: none.
	Insecure []string
	// Credentials finds out what a registry wants to know of this user. Default:
	// nothing is known.
	Credentials CredentialFunc
	// CacheSize is how many bytes on disk the cache may have; what was used least
	// recently goes when more is added. With Sharing, templates and imported images do not
	// count, and what does not fit is refused. Default: no bound.
	CacheSize int64
	// Sharing is how the owners of a server share the cache. Default: one user has it.
	Sharing *Sharing
	// PullTimeout is how long fetching one image may take. Default: 30 minutes.
	PullTimeout time.Duration
	// Builtins are names of templates that "template build builtin:NAME" builds, for hints.
	Builtins []string
}

// Sharing bounds what the owners of a server do to its cache.
type Sharing struct {
	// Guard refuses registries that are not public, to owners only. Default: none is
	// refused.
	Guard *Guard
	// Pulls are the slots for pulls. Default: any number of pulls run at a time.
	Pulls *fairshare.Pool
	// OwnerSize is how many bytes of Options.CacheSize each owner may have: images that its
	// names mean and its builds have made, unless a shared name means them too. Default: no
	// bound but CacheSize.
	OwnerSize int64
	// Disk keeps some of the disk free. Default: none of it.
	Disk *diskspace.Disk
}

// Credential is what a registry wants to know of a user.
type Credential struct {
	User, Password string
	// Token, if there is one, is exchanged for others in place of the two.
	Token string
}

// String hides it.
func (c Credential) String() string { return "(hidden)" }

// GoString hides it.
func (c Credential) GoString() string { return c.String() }

// CredentialFunc returns the credential for a registry, named as people write it
// (docker.io, localhost:5000). None is the zero Credential.
type CredentialFunc func(ctx context.Context, registry string) (Credential, error)

func (o Options) withDefaults() Options {
	if o.Pull == "" {
		o.Pull = PullMissing
	}
	if o.PullTimeout <= 0 {
		o.PullTimeout = 30 * time.Minute
	}
	if o.Credentials == nil {
		o.Credentials = func(context.Context, string) (Credential, error) { return Credential{}, nil }
	}
	o.Credentials = withContextLogin(o.Credentials)
	return o
}

// timeouts are how long is waited for what.
type timeouts struct {
	connect time.Duration
	idle    time.Duration // without any byte
	pause   time.Duration // before the first new attempt; doubles
	longest time.Duration // that such a pause becomes, whoever asks for it
	tries   int           // in a row, without any byte more
}

var defaultTimeouts = timeouts{
	connect: 15 * time.Second, idle: 30 * time.Second, pause: 500 * time.Millisecond, longest: time.Minute, tries: 5,
}
