package image

import (
	"context"
	"math"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// PullPolicy selects when a registry is asked.
type PullPolicy string

// The policies.
const (
	PullMissing PullPolicy = "missing" // when the image is not in the cache
	PullAlways  PullPolicy = "always"  // each time, in case the tag means another image now
	PullNever   PullPolicy = "never"

	pullOffline PullPolicy = "offline" // never, because the caller cannot wait
)

// Options configure a Store. The zero value of a field means its default.
type Options struct {
	// Pull is when a registry is asked. Default: PullMissing.
	Pull PullPolicy
	// Mirrors are tried in order before their registry, which is the key: docker.io to
	// localhost:5000. Default: none.
	Mirrors map[string][]string
	// Insecure are registries that may be contacted without encryption, besides
	// those of this machine. Default: none.
	Insecure []string
	// Credentials returns the user's login for a registry. Default: no logins.
	Credentials CredentialFunc
	// CacheSize is the largest size of the cache in bytes on disk; above it, images that were
	// used least recently are removed. With Sharing, templates and imported images do not
	// count, and an image that does not fit is refused. Default: no bound.
	CacheSize int64
	// Sharing is how the owners of a server share the cache. Default: it has one user.
	Sharing *Sharing
	// PullTimeout bounds the time for fetching one image. Default: no bound.
	PullTimeout time.Duration
	// Builtins are names of templates that "template build builtin:NAME" builds, for hints.
	Builtins []string
}

// Sharing bounds how the owners of a server use its cache.
type Sharing struct {
	// Guard denies owners access to registries that are not public. Default: all are allowed.
	Guard *Guard
	// Pulls limits concurrent pulls. Default: no limit.
	Pulls *fairshare.Pool
	// OwnerSize is how many bytes of Options.CacheSize each owner may use: images with the
	// owner's names or from its builds, except those with a shared name. Default: only
	// CacheSize is a bound.
	OwnerSize int64
	// Disk reserves free space on the disk. Default: none.
	Disk *diskspace.Disk
}

// Credential is a login for a registry.
type Credential struct {
	User, Password string
	// Token, if set, is exchanged for access tokens instead of User and Password.
	Token string
}

// String hides the credential.
func (c Credential) String() string { return "(hidden)" }

// GoString hides the credential.
func (c Credential) GoString() string { return c.String() }

// CredentialFunc returns the credential for a registry such as docker.io or localhost:5000,
// or the zero Credential if it is unknown.
type CredentialFunc func(ctx context.Context, registry string) (Credential, error)

func (o Options) withDefaults() Options {
	if o.Pull == "" {
		o.Pull = PullMissing
	}
	if o.PullTimeout == 0 {
		o.PullTimeout = math.MaxInt64
	}
	if o.Credentials == nil {
		o.Credentials = func(context.Context, string) (Credential, error) { return Credential{}, nil }
	}
	o.Credentials = withContextLogin(o.Credentials)
	return o
}

// timeouts are the timeouts and retry delays of requests to registries.
type timeouts struct {
	connect time.Duration
	idle    time.Duration // without any byte
	pause   time.Duration // before the first retry; doubles
	longest time.Duration // upper bound of a pause, also of one that the registry requests
	tries   int           // consecutive attempts without progress
}

var defaultTimeouts = timeouts{
	connect: 15 * time.Second, idle: 30 * time.Second, pause: 500 * time.Millisecond, longest: time.Minute, tries: 5,
}
