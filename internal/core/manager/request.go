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

// CreateRequest asks for a sandbox. The zero value of a field means the default
// stated with it.
type CreateRequest struct {
	// Owner is who asks, and whom the sandbox belongs to. Default: nobody.
	Owner string
	// Provider is who makes it, by name. Default: Options.Provider.
	Provider string
	// Spec says what it shall be. The label Label is the manager's.
	Spec sandpit.Spec
	// Admin says that the client is an administrator, and may use every image.
	Admin bool
	// Configured says that Spec.Image comes from the configuration of the server and not
	// from the client: it means what it means to the administrator.
	Configured bool
	// Secrets are environment that only the sandbox's programs have: it is kept in
	// Options.SecretsDir until the sandbox is gone, and not given to copies. Default: none.
	Secrets map[string]string
	// Lease says how long it may exist. The owner is set by the manager; a deadline
	// is kept to the millisecond.
	Lease sandpit.Lease
	// Offline keeps a network from the sandbox that Options.Fill would give it.
	Offline bool
	// Endless keeps the lifetime of the options from a request without a deadline.
	Endless bool
	// Policy says what happens to it by itself. IdleTimeout: default that of the
	// options; below zero never.
	Policy store.Policy
	// Key makes the request one that may be sent again: while the sandbox exists
	// the same request by the same owner returns it. Default: each request makes one.
	Key string
	// Timeout is how long the making may take, from when its image is there and its turn
	// has come. Default: Options.CreateTimeout.
	Timeout time.Duration
	// Setup is what is to be done inside before it counts as running. If it fails
	// the sandbox is taken back. Default: nothing. It is not done again when the
	// policy has the sandbox made again. If it fails in a sandbox of a pool, it is
	// tried once more in a new one.
	Setup func(ctx context.Context, i sandpit.Instance) error

	pool string // key of the pool that it is made for
	// trusted says that Spec.Image is of the manager's own making, or of the configuration's.
	trusted bool
	// prepared is its Row.Prepared.
	prepared    sandpit.Image
	startRecipe *sandpit.Recipe // what has to be started in it; nil: nothing
	// visibleImage is what it has, seen from outside, if what it is made of is another. Default: that.
	visibleImage *sandpit.Image
	// term is its Row.Term. Default: as long as its lease.
	term time.Duration
}

// prepareRequest checks a request and fills in what it leaves out.
func (cr *creator) prepareRequest(ctx context.Context, r CreateRequest, now time.Time) (CreateRequest, error) {
	r.Spec = r.Spec.Clone()
	r.Spec.Secrets = slices.Sorted(maps.Keys(r.Secrets))
	if r.Provider == "" {
		r.Provider = cr.o.Provider
	}
	if cr.o.Providers[r.Provider] == nil {
		known := slices.Sorted(maps.Keys(cr.o.Providers))
		return r, sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q. Available providers: %s",
			r.Provider, strings.Join(known, ", "))
	}
	r.trusted = r.trusted || r.Spec.Image == "" // what is filled in is configured
	asked := r.Spec.Network
	cr.o.Fill(r.Provider, &r.Spec)
	if r.Offline {
		r.Spec.Network = asked // as it was asked for, which is checked below
	}
	bounded, err := cr.o.BoundNetwork(r.Spec.Network, isAdministrator(ctx))
	if err != nil {
		return r, err
	}
	r.Spec.Network = bounded
	if r.Timeout == 0 {
		r.Timeout = cr.o.CreateTimeout
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

// completeIdleTimeout fills in the idle timeout of a policy in a request. One that has an idle
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
		return sandpit.Errorf(sandpit.Invalid, "a sandbox with a network, or rules for one, cannot be offline")
	}
	if r.Timeout < 0 {
		return sandpit.Errorf(sandpit.Invalid, "timeout %v, want a positive one", r.Timeout)
	}
	return nil
}

// computeDigest is of what a request asks for. Times are not in it: who asks again asks
// later.
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
	}{r.Provider, r.Spec, r.Lease.Action, p})
	if err != nil { // a limit that is no number
		text = []byte(err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// eventArgs say what was asked for, without what may be secret.
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
			return l, sandpit.Errorf(sandpit.Invalid, "deadline %s: it has passed", l.Deadline.Format(time.RFC3339))
		}
		if err := queue.CheckTime(l.Deadline); err != nil {
			return l, err
		}
	}
	return l, checkAction("deadline", l.Action)
}

// leaseTermFrom is how long a lease lasts from now on, 0 for ever.
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

// minCheckpointEvery is how often files may be saved: each time the sandbox holds still
// for a moment, and all of its files are written.
const minCheckpointEvery = 10 * time.Second

// maxRecreate is how often a sandbox may be made again.
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
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "checkpoints of a sandbox that is not made again after a crash"),
			"say also how often it may be recreated")
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
			return sandpit.Errorf(sandpit.Invalid, "label %q is the manager's own", key)
		}
	}
	return nil
}
