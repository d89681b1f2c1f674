package manager

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// Options configure a Manager. Fields without a stated default are required, except that limits may
// be zero where their description says what that means.
type Options struct {
	// Store persists the records. The caller closes it after the manager.
	Store *store.Store
	// Queue persists scheduled actions. The caller closes it after the manager. Default: the
	// store's own.
	Queue queue.Queue
	// Providers are the providers by name. The caller closes them after the manager.
	Providers map[string]sandpit.Provider
	// Provider is the name of the default provider. Default: the only one; with several, each
	// request must name one.
	Provider string
	// Fallbacks are the names of the providers that are asked, in this order, if the default one
	// cannot create a sandbox. Default: none.
	Fallbacks []string
	// ProviderLimits are the limits of single providers, by name. Default: none.
	ProviderLimits map[string]ProviderLimits
	// Clock is the time of day. Default: clock.System.
	Clock clock.Clock
	// Log gets problems that no caller gets as an error. Default: none is logged.
	Log *slog.Logger

	// CompleteSpec completes a request's spec, whose maps it may change, before the spec is checked.
	// Default: the provider completes it.
	CompleteSpec func(provider string, spec *sandpit.Spec)
	// BoundNetwork completes a requested network policy, with the ports that it opens inside, or
	// returns an error if the policy asks for more than the ceiling allows. It is called when a
	// sandbox is created and when its rules are replaced. Default: the policy is not changed, and
	// opens no port inside.
	BoundNetwork func(p sandpit.NetworkPolicy, administrator bool) (sandpit.NetworkPolicy, error)
	// Environ returns environment variables that a sandbox gets in addition to those of its spec,
	// and that override them. It is called when a sandbox is created or claimed; its result is not
	// persisted. Default: none.
	Environ func(sandpit.Sandbox) map[string]string
	// Observer is called for metrics. Default: none.
	Observer Observer
	// Admit decides about each command before it starts, whatever API starts it. Its arguments are
	// those of sandpit.GuestObserver.Admit. Default: all are admitted.
	Admit func(ctx context.Context, args []string, dir string) error
	// ConfineFiles has every file call refused that leaves the sandbox's working directory and
	// mounts, whatever API makes it. Commands are not confined.
	ConfineFiles bool
	// Images decides which images an owner may use, and prepares them before a sandbox takes a
	// slot. Default: providers get images as requests name them.
	Images Images
	// Publisher opens published ports. The caller closes it before the manager. Default:
	// published ports are Unsupported.
	Publisher Publisher

	// MaxSandboxes is how many sandboxes there may be, stopped and archived ones not counted.
	MaxSandboxes int
	// MaxSaved is how many stopped, suspended and archived sandboxes each owner may have, and
	// MaxSavedBytes how many bytes of disk they may take together, with checkpoints and with the
	// temporary snapshots of forks. Zero: none; no limit.
	MaxSaved      int
	MaxSavedBytes int64
	// Disk is the disk that sandboxes are saved on, and ArchiveDisk the one that archived ones are
	// on. Space is reserved before it is used, no sandbox is created while Disk is almost full, and
	// an owner that has to leave room for others takes at most half of Disk. Default: no checks.
	Disk, ArchiveDisk *diskspace.Disk
	// MaxVolumes is how many volumes each owner may have, and MaxVolumeBytes how many bytes they may
	// take together. Zero: none; no limit.
	MaxVolumes     int
	MaxVolumeBytes int64
	// MaxSnapshots is how many snapshots each owner may have, and MaxSnapshotBytes how many bytes
	// they may take together. Zero: none; no limit.
	MaxSnapshots     int
	MaxSnapshotBytes int64
	// Builder builds templates for the provider BuilderProvider. Default: templates are
	// Unsupported.
	Builder         TemplateBuilder
	BuilderProvider string
	// Builtins are the recipes, by name, of templates that are part of the program. Each is built
	// when it is first requested. Default: none.
	Builtins map[string]sandpit.Recipe
	// Enforceable returns those limits of a template that a provider can enforce on this machine.
	// The others are dropped, so that the template can still be used. Default: all of them.
	Enforceable func(provider string, limits sandpit.Resources) sandpit.Resources
	// MaxTemplates is how many templates each owner may have, and MaxTemplateBytes how many bytes
	// all of their builds may take. Zero: none; no limit.
	MaxTemplates     int
	MaxTemplateBytes int64
	// MaxBuilds is how many builds run at a time, at most half (rounded up) of them for one owner;
	// others wait.
	MaxBuilds int
	// BuildTimeout bounds a build, from when it has its slot.
	BuildTimeout time.Duration
	// TempDir is the directory for temporary directories, as tempdir.Check returns it. Default:
	// temporary directories are Unsupported.
	TempDir string
	// SecretsDir is the directory for the secrets of sandboxes, readable only by the server's
	// user; it is created if missing. Default: secrets are Unsupported.
	SecretsDir string
	// Quotas are further limits of the number of sandboxes. Default: none.
	Quotas Quotas
	// KeyOwners returns the owners that have API keys; the value is true for administrators. Owners
	// leave room for other owners that have keys; administrators need not. Default: owners are known
	// by their sandboxes, and none is an administrator.
	KeyOwners func(ctx context.Context) (map[string]bool, error)
	// Pools are the pools of spares. Default: none.
	Pools []Pool
	// Parallel is how many sandboxes are created or started at the same time, at most half (rounded
	// up) of them for one owner; others wait. The same bound holds for saves, and for the actions of
	// policies and deadlines.
	Parallel int

	// CreateTimeout bounds the creation of a sandbox, from when its image is ready and it has its
	// slot.
	CreateTimeout time.Duration
	// CallTimeout bounds other calls of providers.
	CallTimeout time.Duration
	// MoveTimeout bounds the calls to suspend, resume, archive or restore a sandbox, if it is
	// longer than CallTimeout. Default: 1 h.
	MoveTimeout time.Duration
	// Drain is how long the users of a sandbox have to release their handles before it is taken
	// from them. Default: 5 s.
	Drain time.Duration
	// KeepDeleted is how long the record of a deleted sandbox is kept, with the reason.
	KeepDeleted time.Duration
	// IdleTimeout applies to a sandbox whose policy has none.
	IdleTimeout time.Duration
	// IdleAction applies to an idle sandbox whose policy has none. If the instance does not support
	// it, the first supported one of sandpit.ActionSuspend, ActionStop and ActionPause is taken.
	IdleAction sandpit.Action
	// Lifetime is how long a sandbox exists whose request has no deadline. Default: for ever.
	Lifetime time.Duration
	// Sweep is the longest time between two sweeps. What is known to be due earlier is done then.
	Sweep time.Duration
	// Reconcile is the time between two comparisons with the providers. Default: 60 s.
	Reconcile time.Duration
	// RenewEvery is the time between two renewals of the expiry of a running sandbox whose provider
	// would end it. Default: 5 min.
	RenewEvery time.Duration
	// Retry is the delay before a failed deadline or deletion is tried again; it doubles with each
	// further failure. Default: 60 s.
	Retry time.Duration
	// MaxRetries is how often it is tried again. Zero: never.
	MaxRetries int

	// DestroyOnClose has Close delete all sandboxes, within 30 s.
	DestroyOnClose bool
	// Suspicion defines which refusals are suspicious.
	Suspicion Suspicion
	// Usage configures the measurement of running sandboxes.
	Usage Usage
}

// Usage configures the measurement of running sandboxes. A sandbox that comes close to a limit
// causes an event, "usage warning", once each time.
type Usage struct {
	// Every is the time between two measurements. Default: none is made.
	Every time.Duration
	// High are the shares of the limits, up to 1, from which on use is high. Default: use is never
	// high.
	High map[usage.Kind]float64
	// Kill is how long use must be high in every measurement before the sandbox is stopped, or
	// deleted where it cannot be stopped. Default: never.
	Kill time.Duration
}

// Quotas limit how many sandboxes there may be of a kind, stopped and archived ones not counted.
type Quotas struct {
	// Owners are the limits of single owners, by name.
	Owners map[string]int
	// Owner is the limit of every other owner. Zero: no limit.
	Owner int
	// Share limits every owner without a limit to half of MaxSandboxes, rounded up, while other
	// owners have keys or sandboxes. It does not limit administrators.
	Share bool
	// Labels are the limits of sandboxes with a label, written "key=value".
	Labels map[string]int
}

// Suspicion is how many refusals of one actor within which time cause an event.
type Suspicion struct {
	Refusals int           // default: 5
	Window   time.Duration // default: 1 minute
}

// Limits that need no configuration.
const (
	closeLimit   = 30 * time.Second // of DestroyOnClose
	storeLimit   = 10 * time.Second // of one write to the store
	guestLimit   = 5 * time.Second  // of a request to a guest
	cleanupLimit = time.Minute      // of undoing a creation
)

// withDefaults checks the options and fills in defaults.
func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || len(o.Providers) == 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: no store or no provider")
	}
	if o.Provider == "" && len(o.Providers) == 1 {
		o.Provider = slices.Collect(maps.Keys(o.Providers))[0]
	}
	for _, name := range append([]string{o.Provider}, o.Fallbacks...) {
		if _, ok := o.Providers[name]; name != "" && !ok {
			return o, sandpit.Errorf(sandpit.Invalid, "open the manager: there is no provider %q", name)
		}
	}
	if o.Queue == nil {
		o.Queue = o.Store.Queue()
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.MoveTimeout, o.Drain = cmp.Or(o.MoveTimeout, time.Hour), cmp.Or(o.Drain, 5*time.Second)
	o.Reconcile, o.Retry = cmp.Or(o.Reconcile, time.Minute), cmp.Or(o.Retry, time.Minute)
	o.RenewEvery = cmp.Or(o.RenewEvery, 5*time.Minute)
	o.Suspicion = Suspicion{cmp.Or(o.Suspicion.Refusals, 5), cmp.Or(o.Suspicion.Window, time.Minute)}
	o.setCallbacks()
	if o.Usage.Every < 0 || o.Usage.Kill < 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: usage every %v, kill after %v, want positive ones", o.Usage.Every, o.Usage.Kill)
	}
	if o.Lifetime < 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: lifetime %v, want a positive one", o.Lifetime)
	}
	return o, cmp.Or(
		checkAction("open the manager: idle", o.IdleAction),
		checkPositive("max sandboxes", o.MaxSandboxes),
		checkPositive("parallel", o.Parallel),
		checkPositive("max builds", o.MaxBuilds),
		checkPositive("build timeout", o.BuildTimeout),
		checkPositive("refusals", o.Suspicion.Refusals),
		checkPositive("window", o.Suspicion.Window),
		checkPositive("create timeout", o.CreateTimeout),
		checkPositive("call timeout", o.CallTimeout),
		checkPositive("move timeout", o.MoveTimeout),
		checkPositive("drain", o.Drain),
		checkPositive("remember", o.KeepDeleted),
		checkPositive("idle timeout", o.IdleTimeout),
		checkPositive("sweep", o.Sweep),
		checkPositive("reconcile", o.Reconcile),
		checkPositive("retry", o.Retry),
		checkPositive("renew every", o.RenewEvery),
		o.checkLimits(),
		o.checkProviderLimits(),
	)
}

// checkLimits refuses limits below zero.
func (o Options) checkLimits() error {
	for name, limit := range map[string]int64{
		"saved": int64(o.MaxSaved), "saved bytes": o.MaxSavedBytes, "volumes": int64(o.MaxVolumes),
		"volume bytes": o.MaxVolumeBytes,
		"snapshots":    int64(o.MaxSnapshots), "snapshot bytes": o.MaxSnapshotBytes,
		"templates": int64(o.MaxTemplates), "template bytes": o.MaxTemplateBytes, "retries": int64(o.MaxRetries),
	} {
		if limit < 0 {
			return sandpit.Errorf(sandpit.Invalid, "open the manager: max %s %d, want zero or a positive one", name, limit)
		}
	}
	return nil
}

// setCallbacks fills in callbacks that do nothing.
func (o *Options) setCallbacks() {
	if o.KeyOwners == nil {
		o.KeyOwners = func(context.Context) (map[string]bool, error) { return nil, nil }
	}
	if o.CompleteSpec == nil {
		o.CompleteSpec = func(string, *sandpit.Spec) {}
	}
	if o.BoundNetwork == nil {
		o.BoundNetwork = func(p sandpit.NetworkPolicy, _ bool) (sandpit.NetworkPolicy, error) {
			p.Inside = nil
			return p, nil
		}
	}
	if o.Enforceable == nil {
		o.Enforceable = func(_ string, limits sandpit.Resources) sandpit.Resources { return limits }
	}
	if o.Environ == nil {
		o.Environ = func(sandpit.Sandbox) map[string]string { return nil }
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Publisher == nil {
		o.Publisher = noPublisher{}
	}
}

// checkPositive refuses a value that is not positive.
func checkPositive[T int | time.Duration](name string, value T) error {
	if value <= 0 {
		return sandpit.Errorf(sandpit.Invalid, "open the manager: %s %v, want a positive one", name, value)
	}
	return nil
}
