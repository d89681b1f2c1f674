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

// Options say how a Manager works. Store and Providers must be given; the zero
// value of another field means the default stated with it.
type Options struct {
	// Store keeps what the manager must know after a crash. The caller closes it,
	// after the manager.
	Store *store.Store
	// Queue keeps what is to be done later. The caller closes it, after the
	// manager. Default: the store's own.
	Queue queue.Queue
	// Providers are those that sandboxes can be made by, by name. The caller closes
	// them, after the manager.
	Providers map[string]sandpit.Provider
	// Provider is the name of the one that is used when none is asked for. Default:
	// the only one; with several, each request must name one.
	Provider string
	// Clock tells the time of day. Default: clock.System.
	Clock clock.Clock
	// Log hears of what goes wrong behind everybody's back. Default: nobody does.
	Log *slog.Logger

	// Fill completes what a request to a provider leaves open, before anything looks at
	// it; its maps are its own. Default: it stays open, and is the provider's business.
	Fill func(provider string, spec *sandpit.Spec)
	// BoundNetwork returns what a requested network policy becomes: what it leaves open
	// filled in, and what it may open inside, or an error if it asks for more than this
	// requester's sandbox may have. It is called whenever a sandbox is made or its rules
	// are replaced. Default: the policy stays as it is, and opens nothing inside.
	BoundNetwork func(p sandpit.NetworkPolicy, administrator bool) (sandpit.NetworkPolicy, error)
	// Environ returns variables that programs of a sandbox find besides those of its spec,
	// and in their place. It is asked when a sandbox is made or claimed; what it returns is
	// kept in no row. Default: there are none.
	Environ func(sandpit.Sandbox) map[string]string
	// Observer hears of what happens, for figures. Default: nobody does.
	Observer Observer
	// Admit decides about each command before it starts, by whichever way it comes. Its
	// arguments are those of sandpit.GuestObserver.Admit. Default: all are admitted.
	Admit func(ctx context.Context, args []string, dir string) error
	// Images decides which images an owner may use, and makes them ready before a sandbox
	// takes a creation slot. Default: providers are given images as requests name them.
	Images Images
	// Publisher opens the ports that sandboxes have published. The caller closes it,
	// before the manager. Default: asking for one is Unsupported.
	Publisher Publisher

	// MaxSandboxes is how many sandboxes there may be, stopped and archived ones
	// left aside. Default: 100.
	MaxSandboxes int
	// MaxSaved is how many sandboxes each owner may have that are stopped, paused on disk or
	// archived, and MaxSavedBytes how much disk they may take together, with checkpoints and
	// with copies that are on the disk for a fork. Below zero: none, and without a limit.
	// Default: 1000, and 100 GiB.
	MaxSaved      int
	MaxSavedBytes int64
	// Disk is where sandboxes are saved, and ArchiveDisk where archived ones are. Space there
	// is reserved before it is used, sandboxes are not created while Disk is almost full, and
	// an owner that has to leave room to others takes at most half of Disk. Default: nothing
	// is known of disks.
	Disk, ArchiveDisk *diskspace.Disk
	// MaxVolumes is how many volumes each owner may have. Below zero: none. Default: 20.
	MaxVolumes int
	// MaxSnapshots is how many snapshots each owner may have, and MaxSnapshotBytes how
	// large they may be together. Below zero: none, and without a limit. Default: 50, and
	// 100 GiB.
	MaxSnapshots     int
	MaxSnapshotBytes int64
	// Builder builds templates, for the provider of the name BuilderProvider. Default:
	// there are none.
	Builder         TemplateBuilder
	BuilderProvider string
	// Builtins are recipes of templates that are part of the program, by name. Each is built
	// when it is first requested. Default: there are none.
	Builtins map[string]sandpit.Recipe
	// Enforceable returns those limits of a template that a provider can enforce on this
	// machine: one that only its maker thought useful does not keep others from using the
	// template, as a default limit does not. Default: all of them.
	Enforceable func(provider string, limits sandpit.Resources) sandpit.Resources
	// MaxTemplates is how many templates each owner may have, and MaxTemplateBytes how
	// large all of their builds may be. Below zero: none, and without a limit. Default: 50,
	// and 100 GiB.
	MaxTemplates     int
	MaxTemplateBytes int64
	// MaxBuilds is how many builds go on at a time, of one owner at most half, rounded up;
	// others wait. Default: 4.
	MaxBuilds int
	// BuildTimeout is how long a build may take, from when its turn has come. Default: 1 h.
	BuildTimeout time.Duration
	// TempDir is the directory in which temporary ones are made, as tempdir.Check returns
	// it. Default: asking for one is Unsupported.
	TempDir string
	// SecretsDir is the directory in which secrets of sandboxes are kept, for nobody else
	// to read; it is made if missing. Default: asking for secrets is Unsupported.
	SecretsDir string
	// Quotas are further such limits. Default: see Quotas.Owner.
	Quotas Quotas
	// KeyOwners returns the owners that API keys act for; administrators are true. Owners
	// leave room for others that have keys, and administrators need not. Default: owners are
	// known by their sandboxes, and none is an administrator.
	KeyOwners func(ctx context.Context) (map[string]bool, error)
	// Pools are sandboxes to be made ahead. Default: none.
	Pools []Pool
	// Parallel is how many sandboxes are created or started at the same time, of one owner
	// at most half, rounded up; others wait. As many are saved, and as many actions of
	// policies and deadlines are done. Default: 8.
	Parallel int

	// CreateTimeout is how long a sandbox may take to be made, from when its image is there
	// and its turn has come. Default: 120 s.
	CreateTimeout time.Duration
	// CallTimeout is how long a provider may take for anything else. Default: 30 s.
	CallTimeout time.Duration
	// MoveTimeout is how long a provider may take to suspend, resume, archive or restore a
	// sandbox, if that is longer than CallTimeout. Default: 1 h.
	MoveTimeout time.Duration
	// Drain is how long those who use a sandbox have to let go of it before it is
	// taken from them. Default: 5 s.
	Drain time.Duration
	// Remember is how long a deleted sandbox is remembered, to tell why it is gone.
	// Default: 1 h.
	Remember time.Duration
	// IdleTimeout is that of a sandbox whose policy says nothing. Default: 3600 s.
	IdleTimeout time.Duration
	// IdleAction is what happens to an idle sandbox whose policy does not say. If it cannot be
	// done, one of sandpit.ActionSuspend, ActionStop and ActionPause that can is. Default:
	// sandpit.ActionSuspend.
	IdleAction sandpit.Action
	// Lifetime is how long a sandbox exists whose request names no deadline. Default:
	// for ever.
	Lifetime time.Duration
	// Sweep is the longest time between two looks for what is idle, forgotten or
	// overdue. What is known to come earlier is done when it comes. Default: 300 s.
	Sweep time.Duration
	// Reconcile is the time between two comparisons with what the providers say.
	// Default: 60 s.
	Reconcile time.Duration
	// Retry is how long a deadline or deletion that failed waits before it is tried
	// again; the time doubles with each further failure. Default: 60 s.
	Retry time.Duration
	// MaxRetries is how often. Below zero: never. Default: 3.
	MaxRetries int

	// DestroyOnClose makes Close delete all sandboxes, within 30 s.
	DestroyOnClose bool
	// Suspicion says from when on refusals are suspicious.
	Suspicion Suspicion
	// Usage says how it is watched what sandboxes use of their limits.
	Usage Usage
}

// Usage has running sandboxes measured again and again. Who comes close to a limit
// raises an event, "usage warning", once each time.
type Usage struct {
	// Every is the time between two measurements. Default: nobody measures.
	Every time.Duration
	// High are the shares of the limits from which on use is high, 1 being all. Default:
	// none is.
	High map[usage.Kind]float64
	// Kill is how long use must be high in every measurement until the sandbox is stopped,
	// or deleted where it cannot be; the reason tells. Default: never.
	Kill time.Duration
}

// Quotas limit how many sandboxes there may be of a kind, stopped and archived
// ones left aside.
type Quotas struct {
	// Owners are the limits of the owners named.
	Owners map[string]int
	// Owner is the limit of every other owner. Below zero: none. Zero: half of
	// MaxSandboxes, rounded up, while other owners have keys or sandboxes, but none for
	// administrators.
	Owner int
	// Labels are the limits of sandboxes with a label, written "key=value".
	Labels map[string]int
}

// Suspicion is how many refusals of one actor within how long raise an event.
type Suspicion struct {
	Refusals int           // default: 5
	Window   time.Duration // default: 1 minute
}

// The limits that nobody needs to change.
const (
	closeLimit   = 30 * time.Second // of DestroyOnClose
	storeLimit   = 10 * time.Second // of one write to the store
	guestLimit   = 5 * time.Second  // of a question to a guest
	cleanupLimit = time.Minute      // of the removal of what could not be made
)

// withDefaults checks o and fills in what is missing.
func (o Options) withDefaults() (Options, error) {
	if o.Store == nil || len(o.Providers) == 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: it needs a store and a provider")
	}
	if o.Provider == "" && len(o.Providers) == 1 {
		o.Provider = slices.Collect(maps.Keys(o.Providers))[0]
	}
	if _, ok := o.Providers[o.Provider]; o.Provider != "" && !ok {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: there is no provider %q", o.Provider)
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
	o.setLimits()
	o.setCallbacks()
	if o.Usage.Every < 0 || o.Usage.Kill < 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: usage every %v, kill after %v, want positive ones", o.Usage.Every, o.Usage.Kill)
	}
	if o.Lifetime < 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "open the manager: lifetime %v, want a positive one", o.Lifetime)
	}
	o.IdleAction = cmp.Or(o.IdleAction, sandpit.ActionSuspend)
	return o, cmp.Or(
		checkAction("open the manager: idle", o.IdleAction),
		checkPositive("max sandboxes", &o.MaxSandboxes, 100),
		checkPositive("parallel", &o.Parallel, 8),
		checkPositive("max builds", &o.MaxBuilds, 4),
		checkPositive("build timeout", &o.BuildTimeout, time.Hour),
		checkPositive("refusals", &o.Suspicion.Refusals, 5),
		checkPositive("window", &o.Suspicion.Window, time.Minute),
		checkPositive("create timeout", &o.CreateTimeout, 2*time.Minute),
		checkPositive("call timeout", &o.CallTimeout, 30*time.Second),
		checkPositive("move timeout", &o.MoveTimeout, time.Hour),
		checkPositive("drain", &o.Drain, 5*time.Second),
		checkPositive("remember", &o.Remember, time.Hour),
		checkPositive("idle timeout", &o.IdleTimeout, time.Hour),
		checkPositive("sweep", &o.Sweep, 5*time.Minute),
		checkPositive("reconcile", &o.Reconcile, time.Minute),
		checkPositive("retry", &o.Retry, time.Minute),
	)
}

// setLimits gives limits their defaults for which less than zero means none.
func (o *Options) setLimits() {
	if o.MaxSaved == 0 {
		o.MaxSaved = 1000
	}
	if o.MaxSavedBytes == 0 {
		o.MaxSavedBytes = 100 << 30
	}
	if o.MaxVolumes == 0 {
		o.MaxVolumes = 20
	}
	if o.MaxSnapshots == 0 {
		o.MaxSnapshots = 50
	}
	if o.MaxSnapshotBytes == 0 {
		o.MaxSnapshotBytes = 100 << 30
	}
	if o.MaxTemplates == 0 {
		o.MaxTemplates = 50
	}
	if o.MaxTemplateBytes == 0 {
		o.MaxTemplateBytes = 100 << 30
	}
}

// setCallbacks fills in those that do nothing.
func (o *Options) setCallbacks() {
	if o.KeyOwners == nil {
		o.KeyOwners = func(context.Context) (map[string]bool, error) { return nil, nil }
	}
	if o.Fill == nil {
		o.Fill = func(string, *sandpit.Spec) {}
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

// checkPositive gives a field its default and refuses what is below zero.
func checkPositive[T int | time.Duration](name string, field *T, value T) error {
	if *field < 0 {
		return sandpit.Errorf(sandpit.Invalid, "open the manager: %s %v, want a positive one", name, *field)
	}
	if *field == 0 {
		*field = value
	}
	return nil
}
