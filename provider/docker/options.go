package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Options say how a Provider works. The zero value of a field means the default
// stated with it.
type Options struct {
	// Endpoint is where the engine is. FindEndpoint finds the user's.
	Endpoint Endpoint
	// StateDir holds records of sandboxes, keys of their guests included. It must
	// exist, belong to this user and be closed to others.
	StateDir string
	// Ephemeral has sandboxes end, and be removed by the engine, when the program that
	// made them ends, however it ends, or when the connection to their guest breaks.
	// Nothing is kept in StateDir, and nobody else can attach to them. Default: they go
	// on.
	Ephemeral bool
	// Manager tells whose sandboxes these are: a Provider lists no others.
	// Default: a random name, kept in StateDir unless Ephemeral is set.
	Manager string
	// Defaults are the limits of sandboxes that ask for none. A field that is zero
	// stands for DefaultLimits.
	Defaults sandpit.Resources
	// Network is the engine's network of sandboxes that are online, such as "bridge".
	// What they reach there, this machine and private networks included, is the
	// network's business. Default: none, and no sandbox is online.
	Network string
	// Runtime is the engine's name of an OCI runtime, such as "runsc". Default: the
	// engine's own.
	Runtime string
	// Userns is the engine's mode of user namespaces, such as Podman's "auto".
	// Default: the engine's own. The machine's is refused.
	Userns string
	// User runs the programs of images that name no user: a name, a uid or uid:gid as
	// known inside. Default: root of the container.
	User string
	// Capabilities are what root of a container may do besides the usual, by their names
	// without CAP_. Those that lead out of a container are refused. Default: none.
	Capabilities []string
	// ReadOnlyRoot has the image's files be read only. The working directory, /tmp,
	// /run, /var/tmp and the user's home are then in memory. Default: they can be changed.
	ReadOnlyRoot bool
	// TmpfsSize is the size of each of those, in bytes. Default: 256 MiB.
	TmpfsSize int64
	// ShmSize is the size of /dev/shm, in bytes. Default: 64 MiB.
	ShmSize int64
	// OpenFiles is how many files a process may have open. Default: 8192.
	OpenFiles int64
	// Pull is when a registry is asked. Default: image.PullMissing.
	Pull image.PullPolicy
	// Guard refuses registries that are not public, to ordinary owners only; what their names
	// mean to the engine, and where they send it, is its own business. Default: none is
	// refused.
	Guard *image.Guard
	// AcquirePull waits until an ordinary owner may have an image fetched; release ends that.
	// Default: any number is fetched at a time.
	AcquirePull func(ctx context.Context, owner string) (release func(), err error)
	// Listed are names of images that every owner may use, however they came into the engine.
	// Default: none.
	Listed []string
	// PullTimeout is how long that may take. Default: 30 minutes.
	PullTimeout time.Duration
	// Credentials finds out what a registry wants to know of this user. Default:
	// nothing is known.
	Credentials image.CredentialFunc
	// Guest is a guest program, linked statically for the engine's architecture.
	// Default: the one that was built in, else the running program.
	Guest string
	// StopGrace is how long programs may take to end when a sandbox is stopped.
	// Default: 5 seconds.
	StopGrace time.Duration
	// CallTimeout is how long one call of the engine may take. Default: 2 minutes.
	CallTimeout time.Duration
	// Patience is how long the engine may not answer before calls under way, Wait
	// included, end with Unavailable. From then on others do at once, until it answers.
	// Default: 1 minute.
	Patience time.Duration
	// Liveness bounds calls into sandboxes. Default: that of liveness.Options.
	Liveness liveness.Options
	// Mounts are the rules of which paths of the engine's machine sandboxes may be shown.
	// Default: all but those that would give a sandbox the machine, a way to control it, a
	// user's home directory or credentials.
	Mounts MountRules
	// Notice hears, once each, which default limits the engine cannot enforce.
	// Default: nobody.
	Notice func(text string)
	// Progress hears about images being pulled. Default: nobody.
	Progress image.Progress
}

// MountRules choose what a Provider checks of the paths of Mounts.
type MountRules int

const (
	// CheckMounts refuses paths that would give a sandbox the machine.
	CheckMounts MountRules = iota
	// AnyMounts refuses none: for programs that check them themselves.
	AnyMounts
)

// DefaultLimits are the limits of a sandbox when nobody says anything else.
func DefaultLimits() sandpit.Resources {
	return sandpit.Resources{Memory: 512 << 20, CPUs: 1, Disk: 10 << 30, PIDs: 1024}
}

var networkPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

func (o Options) withDefaults() (Options, error) {
	switch {
	case !o.Ephemeral && !filepath.IsAbs(o.StateDir):
		return o, sandpit.Errorf(sandpit.Invalid, "state directory %q: want an absolute path", o.StateDir)
	case o.Network != "" && (o.Network == "host" || !networkPattern.MatchString(o.Network)):
		return o, sandpit.Errorf(sandpit.Invalid, "network %q: want the name of a network, and not the machine's", o.Network)
	case o.Userns == "host":
		return o, sandpit.Errorf(sandpit.Invalid, "user namespace %q: a sandbox does not get the machine's", o.Userns)
	}
	if err := checkCapabilities(o.Capabilities); err != nil {
		return o, err
	}
	limits := DefaultLimits()
	o.Defaults.Memory = cmp.Or(o.Defaults.Memory, limits.Memory)
	o.Defaults.CPUs = cmp.Or(o.Defaults.CPUs, limits.CPUs)
	o.Defaults.Disk = cmp.Or(o.Defaults.Disk, limits.Disk)
	o.Defaults.PIDs = cmp.Or(o.Defaults.PIDs, limits.PIDs)
	if err := o.Defaults.Validate(); err != nil {
		return o, err
	}
	o.TmpfsSize = cmp.Or(o.TmpfsSize, 256<<20)
	o.ShmSize = cmp.Or(o.ShmSize, 64<<20)
	o.OpenFiles = cmp.Or(o.OpenFiles, 8192)
	o.Pull = cmp.Or(o.Pull, image.PullMissing)
	o.PullTimeout = cmp.Or(o.PullTimeout, 30*time.Minute)
	o.StopGrace = cmp.Or(o.StopGrace, 5*time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, 2*time.Minute)
	o.Patience = cmp.Or(o.Patience, time.Minute)
	if o.Credentials == nil {
		o.Credentials = func(context.Context, string) (image.Credential, error) { return image.Credential{}, nil }
	}
	if o.AcquirePull == nil {
		o.AcquirePull = func(context.Context, string) (func(), error) { return func() {}, nil }
	}
	var err error
	o.Manager, err = managerName(o)
	return o, err
}

// managerName returns the name that is kept in the state directory.
func managerName(o Options) (string, error) {
	if o.Manager != "" {
		return o.Manager, nil
	}
	if o.Ephemeral {
		return rand.Text(), nil
	}
	file := filepath.Join(o.StateDir, "manager")
	for range 2 {
		data, err := os.ReadFile(file)
		if err == nil {
			if name := strings.TrimSpace(string(data)); name != "" {
				return name, nil
			}
			return "", sandpit.Errorf(sandpit.Internal, "%s is empty", file)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if err := atomicfile.Create(file, 0o600, []byte(rand.Text())); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return "", sandpit.Errorf(sandpit.Unavailable, "%s comes and goes", file)
}
