package daytona

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// The defaults of Options, which are those of OpenManus where it has one.
const (
	DefaultEndpoint    = "https://app.daytona.io/api"
	DefaultTarget      = "us"
	DefaultImage       = sandpit.Image("whitezxj/sandbox:0.1.0")
	DefaultEntrypoint  = "/usr/bin/supervisord -n -c /etc/supervisor/conf.d/supervisord.conf"
	DefaultAutoStop    = 15 * time.Minute
	DefaultAutoArchive = 24 * time.Hour
	DefaultAutoDelete  = 30 * 24 * time.Hour
)

// DefaultResources returns the limits of sandboxes whose specs have none.
func DefaultResources() sandpit.Resources {
	return sandpit.Resources{CPUs: 2, Memory: 4 << 30, Disk: 5 << 30}
}

// Options configure a Provider. Fields without a stated default are required.
type Options struct {
	// Endpoint is the URL of the control API. Default: DefaultEndpoint.
	Endpoint string
	// Key is the API key.
	Key string
	// Target is the region of new sandboxes. Default: the account's.
	Target string
	// StateDir holds the secret from which the keys of guests are derived, and records of
	// snapshots. It must exist, belong to this user and be closed to others. It is not used if
	// Ephemeral is set.
	StateDir string
	// Ephemeral has the cloud delete sandboxes as soon as they stop. Default: they are kept.
	Ephemeral bool
	// Manager marks the sandboxes of a Provider, which lists no others. Default: a random name,
	// stored in StateDir unless Ephemeral is set.
	Manager string
	// Image is the image of sandboxes whose specs name none. Default: DefaultImage.
	Image sandpit.Image
	// Entrypoint is the command that starts the services of an image. It runs in sandboxes whose
	// image has its program. Default: none.
	Entrypoint string
	// VNCPassword is the password of the desktops. Default: a random one for each sandbox.
	VNCPassword string
	// Defaults are the limits of sandboxes whose specs have none. Default: DefaultResources.
	Defaults sandpit.Resources
	// Public opens the ports of sandboxes to everyone with their URLs. Default: a URL needs
	// a token.
	Public bool
	// AutoStop is the longest time without use until Daytona stops a sandbox, which Renew counts as
	// a use. AutoArchive is the time stopped until a sandbox is archived, and AutoDelete the time
	// stopped until it is deleted, for sandboxes whose Spec.Expiry has no such time. Defaults:
	// DefaultAutoStop, DefaultAutoArchive, DefaultAutoDelete.
	AutoStop, AutoArchive, AutoDelete time.Duration
	// CreateTimeout bounds the creation of a sandbox, including the download of its image, and
	// StartTimeout any other change of its state. Defaults: 10 min, 5 min.
	CreateTimeout, StartTimeout time.Duration
	// ServiceTimeout bounds the start of an image's services. Default: 1 min.
	ServiceTimeout time.Duration
	// CallTimeout bounds one call of the API. Default: 1 min.
	CallTimeout time.Duration
	// Poll is the interval at which the states of sandboxes are read while calls of Wait are
	// active. Default: 5 s.
	Poll time.Duration
	// Toolbox uses the toolbox API instead of a guest. Default: a guest is used.
	Toolbox bool
	// Liveness bounds calls into sandboxes. Default: the defaults of liveness.Options.
	Liveness liveness.Options
	// Transport sends all requests. Default: a transport of its own.
	Transport http.RoundTripper
	// Log receives warnings. Default: they are discarded.
	Log *slog.Logger
}

// serviceEnv returns the variables that the images of OpenManus expect, except for the password.
func serviceEnv() map[string]string {
	return map[string]string{
		"CHROME_PERSISTENT_SESSION": "true",
		"RESOLUTION":                "1024x768x24",
		"RESOLUTION_WIDTH":          "1024",
		"RESOLUTION_HEIGHT":         "768",
		"ANONYMIZED_TELEMETRY":      "false",
		"CHROME_PATH":               "",
		"CHROME_USER_DATA":          "",
		"CHROME_DEBUGGING_PORT":     "9222",
		"CHROME_DEBUGGING_HOST":     "localhost",
		"CHROME_CDP":                "",
	}
}

// passwordVariable is the variable with the password of the desktop.
const passwordVariable = "VNC_PASSWORD"

// environ returns the environment of a new sandbox: the defaults, and over them that of the spec.
func (o Options) environ(spec sandpit.Spec) map[string]string {
	env := serviceEnv()
	env[passwordVariable] = o.VNCPassword
	if o.VNCPassword == "" {
		env[passwordVariable] = rand.Text()[:12]
	}
	maps.Copy(env, spec.Env)
	return env
}

// keyPattern is what an API key looks like: it becomes the value of a header.
var keyPattern = pattern.New(`^[!-~]+$`)

func (o Options) withDefaults() (Options, error) {
	if o.Key == "" {
		return o, sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "provider daytona has no API key"), keyHint)
	}
	if !keyPattern().MatchString(o.Key) {
		return o, sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "the API key of provider daytona contains characters that no key has"), keyHint)
	}
	if !o.Ephemeral && !filepath.IsAbs(o.StateDir) {
		return o, sandpit.Errorf(sandpit.Invalid, "state directory %q: want an absolute path", o.StateDir)
	}
	setDefault(&o.Endpoint, DefaultEndpoint)
	setDefault(&o.Image, DefaultImage)
	setDefault(&o.Defaults, DefaultResources())
	setDefault(&o.AutoStop, DefaultAutoStop)
	setDefault(&o.AutoArchive, DefaultAutoArchive)
	setDefault(&o.AutoDelete, DefaultAutoDelete)
	setDefault(&o.CreateTimeout, 10*time.Minute)
	setDefault(&o.StartTimeout, 5*time.Minute)
	setDefault(&o.ServiceTimeout, time.Minute)
	setDefault(&o.CallTimeout, time.Minute)
	setDefault(&o.Poll, 5*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for name, value := range map[string]time.Duration{
		"auto stop": o.AutoStop, "auto archive": o.AutoArchive, "auto delete": o.AutoDelete, "create timeout": o.CreateTimeout,
		"start timeout": o.StartTimeout, "service timeout": o.ServiceTimeout, "call timeout": o.CallTimeout, "poll": o.Poll,
	} {
		if value < 0 {
			return o, sandpit.Errorf(sandpit.Invalid, "%s %v: want a positive time", name, value)
		}
	}
	return o, o.Defaults.Validate()
}

// setDefault sets a field that has the zero value.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// keyHint says where a key comes from.
const keyHint = "create a key at https://app.daytona.io/dashboard/keys, and set DAYTONA_API_KEY or daytona.daytona_api_key"

// The files of the state directory.
const (
	managerFile   = "manager"
	secretFile    = "secret"
	snapshotsName = "snapshots"
)

// readOrCreate returns the text in a file of the state directory, which it creates with a random
// text first if it is missing.
func (o Options) readOrCreate(name string) (string, error) {
	if o.Ephemeral {
		return rand.Text(), nil
	}
	file := filepath.Join(o.StateDir, name)
	for range 2 {
		data, err := os.ReadFile(file)
		if err == nil {
			if text := strings.TrimSpace(string(data)); text != "" {
				return text, nil
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
