package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// CreateRequest asks for a sandbox. The zero value of a field means the default stated with it.
//
// It is the authorized form of a client's api.CreateRequest or of another API's request: it has
// the owner and rights of the client, and functions that clients cannot send.
type CreateRequest struct {
	// Owner is the tenant that the sandbox belongs to. Default: none.
	Owner string
	// ID is the ID of the sandbox, which no other has had. Then no spare of a pool is claimed, and
	// only the first provider is asked. Default: a new one.
	ID sandpit.ID
	// Provider is the name of the provider, or several in the order of preference, separated by
	// commas: the next one is asked if one cannot create the sandbox. Default: Options.Provider,
	// then Options.Fallbacks.
	Provider string
	// Spec describes the sandbox. The label Label is reserved for the manager.
	Spec sandpit.Spec
	// Authorize checks what the sandbox would use of the server's machine, and may change its spec,
	// which has what its template or snapshot determines. Default: nothing is checked.
	Authorize func(spec *sandpit.Spec) error
	// Admin reports whether the client is an administrator, and may use every image.
	Admin bool
	// Configured reports whether Spec.Image comes from the server's configuration and not from
	// the client: then it means what it means to the administrator.
	Configured bool
	// Secrets are environment variables that only the sandbox's programs get: they are stored in
	// Options.SecretsDir until the sandbox is deleted, and not given to copies. Default: none.
	Secrets map[string]string
	// Lease is the deadline and its action. The manager sets the owner and rounds the deadline to
	// milliseconds.
	Lease sandpit.Lease
	// Offline prevents Options.CompleteSpec from giving the sandbox a network.
	Offline bool
	// Endless prevents Options.Lifetime from giving a request without a deadline one.
	Endless bool
	// Policy has the actions that the manager takes on its own. IdleTimeout: default
	// Options.IdleTimeout; below zero: never.
	Policy store.Policy
	// Key is an idempotency key: while the sandbox exists, the same request of the same owner
	// returns it. Default: each request creates a sandbox.
	Key string
	// Timeout bounds the creation, from when the image is ready and the slot is acquired.
	// Default: Options.CreateTimeout.
	Timeout time.Duration
	// Setup runs before the sandbox counts as running. If it fails, the creation is undone. If
	// it fails in a spare, it is tried once more in a new sandbox. It does not run again when the
	// sandbox is recreated. Default: none.
	Setup Setup

	pool string // key of the pool that the sandbox is created for
	// asked are the providers of the request, if there are several. reason is Row.Reason of the
	// sandbox, and movesOn reports whether another provider is asked next.
	asked, reason string
	movesOn       bool
	// failed are the IDs of earlier attempts, of which what they left may still exist.
	failed []sandpit.ID
	// trusted reports whether the manager or the configuration has set Spec.Image.
	trusted bool
	// prepared is Row.Prepared.
	prepared    sandpit.Image
	startRecipe *sandpit.Recipe // the recipe whose program must be started; nil: none
	// visibleImage is the image that callers see, if the sandbox is created from another one.
	visibleImage *sandpit.Image
	// term is Row.Term. Default: the duration of the lease.
	term time.Duration
}

// Setup prepares a new sandbox that was created with spec.
type Setup func(ctx context.Context, i sandpit.Instance, spec sandpit.Spec) error

// prepareRequest checks a request and fills in what it leaves out.
func (cr *creator) prepareRequest(ctx context.Context, r CreateRequest, now time.Time) (CreateRequest, error) {
	r.Spec = r.Spec.Clone()
	r.Spec.Secrets = slices.Sorted(maps.Keys(r.Secrets))
	if r.Provider == "" {
		r.Provider = cr.o.Provider
	}
	if cr.o.Providers[r.Provider] == nil {
		return r, cr.o.unknownProvider(r.Provider)
	}
	r.trusted = r.trusted || r.Spec.Image == "" // Options.CompleteSpec sets a configured image
	asked := r.Spec.Network
	cr.o.CompleteSpec(r.Provider, &r.Spec)
	if r.Offline {
		r.Spec.Network = asked // checked below
	}
	bounded, err := cr.o.BoundNetwork(r.Spec.Network, isAdministrator(ctx))
	if err != nil {
		return r, err
	}
	r.Spec.Network = bounded
	if r.Timeout == 0 {
		r.Timeout = cr.o.createTimeout(r.Provider)
	}
	r.Lease.Owner = r.Owner
	lease, err := prepareLease(r.Lease, now)
	if err != nil {
		return r, err
	}
	r.Lease = lease
	r.Policy = cr.core.completeIdleTimeout(r.Policy)
	return r, cmp.Or(r.checkFields(), checkSecrets(r.Secrets), checkPolicy(r.Policy), checkLabels(r.Spec.Labels),
		sandpit.CheckPorts(r.Spec.Ports), cr.checkTempDirs(r.Spec.Mounts), cr.checkNewName(ctx, r))
}

// completeIdleTimeout fills in the idle timeout of a policy in a request. A policy that has an idle
// sandbox suspended or stopped at another time has none by default.
func (c *core) completeIdleTimeout(p store.Policy) store.Policy {
	switch {
	case p.IdleTimeout < 0:
		p.IdleTimeout = 0
	case p.IdleTimeout == 0 && p.AutoSuspend == 0 && p.AutoStop == 0:
		p.IdleTimeout = c.o.IdleTimeout
	default:
	}
	return p
}

func (r CreateRequest) checkFields() error {
	for name, value := range map[string]string{"owner": r.Owner, "key": r.Key} {
		if len(value) > store.MaxName {
			return sandpit.Errorf(sandpit.Invalid, "%s of %d bytes, want at most %d", name, len(value), store.MaxName)
		}
	}
	if r.Offline && (r.Spec.Network.Online || len(r.Spec.Network.Allow)+len(r.Spec.Network.Deny) > 0) {
		return sandpit.Errorf(sandpit.Invalid, "offline, but with a network or network rules")
	}
	if r.Timeout < 0 {
		return sandpit.Errorf(sandpit.Invalid, "timeout %v, want a positive one", r.Timeout)
	}
	return nil
}

// computeDigest returns the digest of what a request asks for, without times: a repeated request
// comes later.
func (r CreateRequest) computeDigest() string {
	// The field names and the idle action of a request that names none are those of earlier
	// versions, so that a request sent again after an upgrade still finds its sandbox.
	type policy store.Policy
	p := policy(r.Policy)
	p.IdleAction = cmp.Or(p.IdleAction, sandpit.ActionKill)
	text, err := json.Marshal(struct {
		Provider string
		Spec     sandpit.Spec
		Action   sandpit.Action
		Policy   policy
	}{cmp.Or(r.asked, r.Provider), r.Spec, r.Lease.Action, p})
	if err != nil { // a limit that is not a number
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// eventArgs returns what a request asks for, without what may be secret.
func (r CreateRequest) eventArgs() map[string]string {
	args := map[string]string{"provider": r.Provider, "image": string(r.Spec.Image), "name": r.Spec.Name, "key": r.Key}
	args["env"] = strings.Join(slices.Sorted(maps.Keys(r.Spec.Env)), " ")
	args["secrets"] = strings.Join(slices.Sorted(maps.Keys(r.Secrets)), " ")
	if !r.Lease.Deadline.IsZero() {
		args["deadline"] = r.Lease.Deadline.UTC().Format(time.RFC3339Nano)
	}
	if r.Spec.Network.Online {
		args["network"] = "online"
		maps.Copy(args, policyArgs(r.Spec.Network))
	}
	maps.DeleteFunc(args, func(_, value string) bool { return value == "" })
	return args
}

// prepareLease checks a lease and fills in what it leaves out.
func prepareLease(l sandpit.Lease, now time.Time) (sandpit.Lease, error) {
	if l.Action == "" {
		l.Action = sandpit.ActionKill
	}
	if !l.Deadline.IsZero() {
		l.Deadline = queue.Millis(l.Deadline)
		if !l.Deadline.After(now) {
			return l, sandpit.Errorf(sandpit.Invalid, "deadline %s has passed", l.Deadline.Format(time.RFC3339))
		}
		if err := queue.CheckTime(l.Deadline); err != nil {
			return l, err
		}
	}
	return l, checkAction("deadline", l.Action)
}

// leaseTermFrom returns how long a lease lasts from now, 0 for ever.
func leaseTermFrom(l sandpit.Lease, now time.Time) time.Duration {
	if l.Deadline.IsZero() {
		return 0
	}
	return l.Deadline.Sub(now)
}

func checkAction(when string, a sandpit.Action) error {
	switch a {
	case sandpit.ActionKill, sandpit.ActionStop, sandpit.ActionPause, sandpit.ActionSuspend:
		return nil
	default:
		return sandpit.Errorf(sandpit.Invalid, "%s: action %.40q, want kill, stop, pause or suspend", when, string(a))
	}
}

// minCheckpointEvery is the shortest time between checkpoints: each one pauses the sandbox for a
// moment and writes all of its files.
const minCheckpointEvery = 10 * time.Second

// maxRecreate bounds how often a sandbox may be recreated.
const maxRecreate = 100

func checkPolicy(p store.Policy) error {
	for name, d := range map[string]time.Duration{
		"auto stop": p.AutoStop, "auto archive": p.AutoArchive, "auto delete": p.AutoDelete,
		"auto suspend": p.AutoSuspend, "checkpoint every": p.CheckpointEvery,
	} {
		if d < 0 {
			return sandpit.Errorf(sandpit.Invalid, "%s %v, want none or a positive one", name, d)
		}
	}
	if p.CheckpointEvery > 0 && p.CheckpointEvery < minCheckpointEvery {
		return sandpit.Errorf(sandpit.Invalid, "checkpoint every %v, want %v or more", p.CheckpointEvery, minCheckpointEvery)
	}
	if p.CheckpointEvery > 0 && p.Recreate == 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "checkpoints of a sandbox that is not recreated after a crash"),
			"set recreate as well")
	}
	if p.Recreate < 0 || p.Recreate > maxRecreate {
		return sandpit.Errorf(sandpit.Invalid, "recreate %d times, want 0 to %d", p.Recreate, maxRecreate)
	}
	if p.IdleAction == "" {
		return nil // the server's
	}
	return checkAction("idle", p.IdleAction)
}

// The bounds of labels.
const (
	maxLabels     = 64
	maxLabelBytes = 1024 // of one, key and value
)

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return sandpit.Errorf(sandpit.Invalid, "%d labels, want at most %d", len(labels), maxLabels)
	}
	for key, value := range labels {
		if key == "" || len(key)+len(value) > maxLabelBytes {
			return sandpit.Errorf(sandpit.Invalid, "label %.40q: want a name, and at most %d bytes", key, maxLabelBytes)
		}
		if key == Label || key == sandpit.OwnerLabel {
			return sandpit.Errorf(sandpit.Invalid, "label %q is reserved for the manager", key)
		}
	}
	return nil
}
