package daytona

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// sandboxHandlers serve sandboxes.
type sandboxHandlers struct {
	manager   *manager.Manager
	describer *describer
	images    *imageResolver
	egress    egress
	access    api.HostAccess
	changes   *changes
	pending   *pendingSet
	// archiveless is set when the provider turned out not to archive sandboxes.
	archiveless atomic.Bool
}

// createRequest is a request for a sandbox.
type createRequest struct {
	networkSettings

	Name        string            `json:"name"`
	Snapshot    string            `json:"snapshot"`
	Build       *newBuildInfo     `json:"buildInfo"`
	User        string            `json:"user"`
	Env         map[string]string `json:"env"`
	Labels      map[string]string `json:"labels"`
	Public      bool              `json:"public"`
	Target      string            `json:"target"`
	CPU         float64           `json:"cpu"`
	GPU         float64           `json:"gpu"`
	Memory      float64           `json:"memory"`
	Disk        float64           `json:"disk"`
	AutoStop    *int64            `json:"autoStopInterval"`
	AutoPause   *int64            `json:"autoPauseInterval"`
	AutoArchive *int64            `json:"autoArchiveInterval"`
	AutoDelete  *int64            `json:"autoDeleteInterval"`
	TTL         int64             `json:"ttlMinutes"`
	Volumes     []volumeMount     `json:"volumes"`

	// These are unsupported.
	Proxy   string              `json:"outboundProxyUrl"`
	Linked  string              `json:"linkedSandbox"`
	Secrets []map[string]string `json:"secrets"`
}

// newBuildInfo is the Dockerfile of a request. Clients write the name of an image as one.
type newBuildInfo struct {
	Dockerfile string   `json:"dockerfileContent"`
	Hashes     []string `json:"contextHashes"`
}

// targets are the regions that requests may name: the only one, and those that Daytona's clients
// are configured for.
var targets = []string{"", region, "us", "eu"}

// check returns an error for what this server cannot do.
func (in createRequest) check() error {
	invalid := func(format string, args ...any) error {
		return refuse(http.StatusBadRequest, sandpit.Invalid, format, args...)
	}
	unsupported := func(name string) error {
		return refuse(http.StatusBadRequest, sandpit.Unsupported, "%s: this server does not support it", name)
	}
	switch {
	case !slices.Contains(targets, in.Target):
		return sandpit.Errorf(sandpit.NotFound, "Region not found: %.100q", in.Target)
	case in.Snapshot != "" && in.Build != nil:
		return invalid("Cannot specify both a snapshot and a build info entry")
	case in.Snapshot != "" && (in.CPU != 0 || in.Memory != 0 || in.Disk != 0):
		return invalid("Cannot specify Sandbox resources when using a snapshot")
	case in.GPU != 0:
		return unsupported("gpu")
	case in.Proxy != "":
		return unsupported("outboundProxyUrl")
	case in.Linked != "":
		return unsupported("linkedSandbox")
	case len(in.Secrets) > 0:
		return unsupported("secrets")
	}
	return nil
}

// maxSize bounds the numbers of requests for resources.
const maxSize = 1 << 20

// toResources returns the limits that a request asks for.
func toResources(cpu, memory, disk float64) (sandpit.Resources, error) {
	for name, value := range map[string]float64{"cpu": cpu, "memory": memory, "disk": disk} {
		if !(value >= 0 && value <= maxSize) { // also refuses NaN
			return sandpit.Resources{}, sandpit.Errorf(sandpit.Invalid, "%s %v: want 0 to %d", name, value, maxSize)
		}
	}
	return sandpit.Resources{CPUs: cpu, Memory: int64(memory * gibibyte), Disk: int64(disk * gibibyte)}, nil
}

// toIntervals returns the intervals that a request asks for.
func (in createRequest) toIntervals() (intervals, error) {
	n := intervals{stop: defaultStop, archive: defaultArchive, delete: noDelete}
	if in.AutoPause != nil {
		n.pause = *in.AutoPause
	}
	if n.pause > 0 {
		n.stop = 0 // only one of them applies
	}
	if in.AutoStop != nil {
		n.stop = *in.AutoStop
	}
	if in.AutoArchive != nil {
		n.archive = archiveInterval(*in.AutoArchive)
	}
	if in.AutoDelete != nil {
		n.delete = *in.AutoDelete
	}
	return n, n.check()
}

// createSandbox creates a sandbox. It responds when the sandbox runs; if the client disconnects
// before, the sandbox is deleted. If its image must be built first, it responds at once.
func (h *sandboxHandlers) createSandbox(c *call) (int, any, error) {
	var in createRequest
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	ctx := c.r.Context()
	r, from, err := h.newRequest(ctx, c.client, in)
	if err != nil {
		h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: "create", Err: err})
		return 0, nil, err
	}
	if !from.waits.Status.Ended() && from.waits.ID != "" {
		return h.createPending(c, in, r, from.waits.ID)
	}
	made, err := h.createArchived(ctx, r, in.AutoArchive == nil)
	if sandpit.CodeOf(err) == sandpit.AlreadyExists {
		err = refuse(http.StatusConflict, sandpit.AlreadyExists, "Sandbox with name %.100s already exists", in.Name)
	}
	if err != nil {
		return 0, nil, describeQuota(err)
	}
	return h.describer.respond(c, made.ID)
}

// createArchived creates a sandbox. If its provider does not archive sandboxes and the client
// has not asked for that, the sandbox is not archived.
func (h *sandboxHandlers) createArchived(ctx context.Context, r manager.CreateRequest, optional bool) (sandpit.Sandbox, error) {
	archives := r.Policy.AutoArchive > 0
	if optional && h.archiveless.Load() {
		r.Policy.AutoArchive = 0
	}
	made, err := h.manager.Create(ctx, r)
	if !optional || !archives || r.Policy.AutoArchive == 0 || sandpit.CodeOf(err) != sandpit.Unsupported {
		return made, err
	}
	if r.ID != "" && !h.awaitUndone(ctx, r.ID) {
		return made, err
	}
	r.Policy.AutoArchive = 0
	made, second := h.manager.Create(ctx, r)
	if second != nil {
		return made, err
	}
	h.archiveless.Store(true)
	return made, nil
}

// undoTimeout is how long undoing a creation may take before the ID counts as used.
const undoTimeout = 30 * time.Second

// awaitUndone waits until no part of a failed creation is left, and reports whether that is so.
func (h *sandboxHandlers) awaitUndone(ctx context.Context, id sandpit.ID) bool {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	ticker := time.NewTicker(buildPoll)
	defer ticker.Stop()
	for {
		if _, err := h.manager.Get(id); sandpit.CodeOf(err) == sandpit.NotFound {
			return true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// newRequest converts a request to one of the manager, and returns what the sandbox starts from.
func (h *sandboxHandlers) newRequest(ctx context.Context, client api.Principal, in createRequest) (r manager.CreateRequest, from origin, err error) {
	r.Owner, r.Admin = client.Owner, client.Admin
	if err := in.check(); err != nil {
		return r, from, err
	}
	n, err := in.toIntervals()
	if err != nil {
		return r, from, err
	}
	r.Policy = n.toPolicy(store.Policy{})
	r.Lease.Action = sandpit.ActionKill
	if r.Lease.Deadline, err = ttlDeadline(in.TTL, time.Now()); err != nil {
		return r, from, err
	}
	if from, err = h.images.resolveRequest(ctx, client, in); err != nil {
		return r, from, err
	}
	r.Configured = from.configured
	// Clients cannot name anything of the server's machine, but their snapshots can.
	r.Authorize = func(spec *sandpit.Spec) error {
		return h.access.AuthorizeSpec(client, spec, api.Consent{Image: from.configured})
	}
	r.Spec.Name, r.Spec.Image, r.Spec.User, r.Spec.Env = in.Name, from.image, in.User, in.Env
	if r.Spec.Resources, err = toResources(in.CPU, in.Memory, in.Disk); err != nil {
		return r, from, err
	}
	m := mark{Snapshot: in.Snapshot, Build: from.build, Public: in.Public}
	if in.Build != nil {
		m.Image = string(from.image)
	}
	if r.Spec.Labels, err = m.toLabels(in.Labels, nil); err != nil {
		return r, from, err
	}
	if r.Spec.Mounts, err = h.toMounts(ctx, client, in.Volumes); err != nil {
		return r, from, err
	}
	if from.saved != nil {
		r.Spec.Network, err = savedPolicy(*from.saved, in.networkSettings)
		return r, from, err
	}
	r.Spec.Network, r.Offline, err = h.egress.newPolicy(in.networkSettings)
	return r, from, err
}

// savedPolicy returns the policy of a sandbox that starts from a snapshot. The snapshot fixes
// whether there is a network.
func savedPolicy(n sandpit.Snapshot, in networkSettings) (sandpit.NetworkPolicy, error) {
	if !in.isBlocked() && in.Allow == nil && in.Domains == nil {
		return sandpit.NetworkPolicy{}, nil // that of the snapshot
	}
	p, err := in.toPolicy()
	switch {
	case err != nil:
		return p, err
	case n.Spec.Network.Online:
		p.Limits = n.Spec.Network.Limits
		return p, nil
	case isClosed(p):
		return sandpit.NetworkPolicy{}, nil
	}
	return p, refuse(http.StatusBadRequest, sandpit.Conflict, "snapshot %s: its sandbox had no network, and sandboxes that start from it cannot have one", n.ID)
}

// toMounts converts the mounts of a new sandbox. Clients name volumes by ID or name.
func (h *sandboxHandlers) toMounts(ctx context.Context, client api.Principal, asked []volumeMount) ([]sandpit.Mount, error) {
	if len(asked) == 0 {
		return nil, nil
	}
	volumes := &volumeHandlers{manager: h.manager}
	all := make([]sandpit.Mount, 0, len(asked))
	for _, m := range asked {
		mount := sandpit.Mount{Volume: m.Volume, Target: m.Path, Subpath: strings.Trim(m.Subpath, "/")}
		if m.Subpath != "" {
			if err := mount.CheckSource(); err != nil {
				return nil, err
			}
		}
		v, err := volumes.findByNameOrID(ctx, client.Owner, m.Volume)
		if err != nil {
			return nil, err
		}
		mount.Volume = v.Name
		all = append(all, mount)
	}
	return all, nil
}
