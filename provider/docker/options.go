package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Options configure a Provider. Fields without a stated default are required.
type Options struct {
	// Endpoint is the address of the engine. FindEndpoint finds the user's.
	Endpoint Endpoint
	// StateDir holds records of sandboxes, keys of their guests included. It must
	// exist, belong to this user and be closed to others.
	StateDir string
	// Ephemeral has the engine end and remove sandboxes when the program that created them ends in
	// any way, or when the connection to their guest breaks. StateDir is not used, and no other
	// program can attach to them. Default: sandboxes keep running.
	Ephemeral bool
	// Manager marks the sandboxes of a Provider, which lists no others. Default: a random name,
	// stored in StateDir unless Ephemeral is set.
	Manager string
	// Defaults are the limits of sandboxes whose specs have none. All are required.
	Defaults sandpit.Resources
	// Network is the engine's network for online sandboxes, such as "bridge". The network decides
	// what they reach, which may include this machine and private networks. Default: none, so no
	// sandbox can be online.
	Network string
	// Runtime is the engine's name of an OCI runtime, such as "runsc". Default: the engine's
	// default.
	Runtime string
	// Userns is the engine's mode of user namespaces, such as Podman's "auto".
	// Default: the engine's default. The machine's user namespace is refused.
	Userns string
	// User runs the programs of images that name no user: a name, a uid or uid:gid as
	// known inside. Default: root of the container.
	User string
	// Capabilities are additional capabilities of root in a container, without CAP_. Those that
	// allow to leave a container are refused. Default: none.
	Capabilities []string
	// ReadOnlyRoot makes the image's files read-only. The working directory, /tmp, /run, /var/tmp
	// and the user's home are then in memory. Default: they are writable.
	ReadOnlyRoot bool
	// TmpfsSize is the size of each directory in memory, in bytes.
	TmpfsSize int64
	// ShmSize is the size of /dev/shm, in bytes.
	ShmSize int64
	// OpenFiles is how many files a process may have open.
	OpenFiles int64
	// Pull decides when to ask a registry. Default: image.PullMissing.
	Pull image.PullPolicy
	// Guard refuses registries that are not public, for ordinary owners only. It does not control
	// how the engine resolves their names, or where they redirect it. Default: none is refused.
	Guard *image.Guard
	// AcquirePull waits until an ordinary owner may fetch an image; the fetch ends with release.
	// Default: no limit.
	AcquirePull func(ctx context.Context, owner string) (release func(), err error)
	// Listed are names of images in the engine that every owner may use, whatever their origin.
	// Default: none.
	Listed []string
	// PullTimeout bounds one fetch of an image.
	PullTimeout time.Duration
	// Credentials returns the login for a registry. Default: no logins.
	Credentials image.CredentialFunc
	// Guest is the path of a guest program, linked statically for the engine's architecture.
	// Default: the built-in one, otherwise the running program.
	Guest string
	// StopGrace is how long programs may take to end when a sandbox stops.
	StopGrace time.Duration
	// CallTimeout bounds one call of the engine.
	CallTimeout time.Duration
	// Patience is how long the engine may not answer before the calls under way, including Wait,
	// fail with Unavailable. After that, calls fail at once until the engine answers.
	Patience time.Duration
	// Liveness bounds calls into sandboxes. Default: the defaults of liveness.Options.
	Liveness liveness.Options
	// Mounts selects which paths of the engine's machine may be mounted. Default: all except those
	// that expose the machine, a way to control it, a user's home directory or credentials.
	Mounts MountRules
	// Notice receives, once each, warnings such as a default limit that the engine cannot enforce.
	// Default: none.
	Notice func(text string)
	// Progress receives the progress of pulls. Default: none.
	Progress image.Progress
}

// MountRules select how a Provider checks the paths of mounts.
type MountRules int

const (
	// CheckMounts refuses paths that expose the machine.
	CheckMounts MountRules = iota
	// AnyMounts refuses none, for programs that check them on their own.
	AnyMounts
)

var networkPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

func (o Options) withDefaults() (Options, error) {
	switch {
	case !o.Ephemeral && !filepath.IsAbs(o.StateDir):
		return o, sandpit.Errorf(sandpit.Invalid, "state directory %q: want an absolute path", o.StateDir)
	case o.Network != "" && (o.Network == "host" || !networkPattern().MatchString(o.Network)):
		return o, sandpit.Errorf(sandpit.Invalid, "invalid network %q: want the name of a network of the engine, not the machine's", o.Network)
	case o.Userns == "host":
		return o, sandpit.Errorf(sandpit.Invalid, "user namespace %q: a sandbox cannot use the machine's", o.Userns)
	}
	if err := checkCapabilities(o.Capabilities); err != nil {
		return o, err
	}
	if err := errors.Join(o.checkNumbers(), o.Defaults.Validate()); err != nil {
		return o, err
	}
	o.Pull = cmp.Or(o.Pull, image.PullMissing)
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

// checkNumbers refuses numbers and times that are not positive.
func (o Options) checkNumbers() error {
	if d := o.Defaults; d.Memory <= 0 || d.CPUs <= 0 || d.Disk <= 0 || d.PIDs <= 0 {
		return sandpit.Errorf(sandpit.Invalid, "default limits %+v: all must be positive", d)
	}
	for name, value := range map[string]int64{
		"size of tmpfs": o.TmpfsSize, "size of shm": o.ShmSize, "open files": o.OpenFiles, "pull timeout": int64(o.PullTimeout),
		"stop grace": int64(o.StopGrace), "call timeout": int64(o.CallTimeout), "patience": int64(o.Patience),
	} {
		if value <= 0 {
			return sandpit.Errorf(sandpit.Invalid, "%s %d: want a positive one", name, value)
		}
	}
	return nil
}

// managerName returns Options.Manager, or else the name in the state directory, which it creates
// first if it is missing.
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
			return "", sandpit.Errorf(sandpit.Internal, "%q is empty", file)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if err := atomicfile.Create(file, 0o600, []byte(rand.Text())); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return "", sandpit.Errorf(sandpit.Unavailable, "read %q: the file was removed repeatedly", file)
}
