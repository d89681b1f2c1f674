package e2b

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// guestVersion is the version of E2B's guest with which sandpit's is compatible.
const guestVersion = "0.6.13"

// clientID is the name of the node.
const clientID = "sandpit"

// accountName is the account for programs in E2B's images.
const accountName = "user"

// sandboxHandlers serve sandboxes.
type sandboxHandlers struct {
	manager   *manager.Manager
	describer *describer
	resolver  *templateResolver
	egress    egress
	access    api.HostAccess
	public    bool // ports need no token unless the request says otherwise
	// userless are images without the account of E2B's images.
	userless imageSet
}

// createRequest is a request for a sandbox.
type createRequest struct {
	Template   string            `json:"templateID"`
	Timeout    *int64            `json:"timeout"`
	Metadata   map[string]string `json:"metadata"`
	Env        map[string]string `json:"envVars"`
	Internet   *bool             `json:"allow_internet_access"`
	Network    *network          `json:"network"`
	AutoPause  bool              `json:"autoPause"`
	KeepMemory *bool             `json:"autoPauseMemory"`
	AutoResume struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`

	Volumes []volumeMount `json:"volumeMounts"`

	// IAM is unsupported. Fields about a gateway for MCP are ignored: E2B uses them for
	// statistics, and the client itself starts the program of the template.
	IAM map[string]any `json:"iam"`
}

// sandbox is the response about a new sandbox, or to a client that connects to one.
type sandbox struct {
	ID           sandpit.ID `json:"sandboxID"`
	Template     string     `json:"templateID"`
	Alias        string     `json:"alias,omitempty"`
	Client       string     `json:"clientID"`
	Version      string     `json:"envdVersion"`
	GuestToken   string     `json:"envdAccessToken"`
	TrafficToken *string    `json:"trafficAccessToken"`
	Domain       *string    `json:"domain"`
}

// respondWithSandbox returns the response to a call that returns a sandbox.
func (h *sandboxHandlers) respondWithSandbox(c *call, status int, b sandpit.Sandbox) (int, any, error) {
	out, err := h.describer.toSandbox(c.r.Context(), b)
	if err != nil {
		return 0, nil, err
	}
	return status, out, nil
}

// handleCreate returns a handler that creates a sandbox. The timeout is that of requests
// without one.
func (h *sandboxHandlers) handleCreate(timeout time.Duration) handler {
	return func(c *call) (int, any, error) {
		var in createRequest
		if err := c.readBody(&in); err != nil {
			return 0, nil, err
		}
		made, err := h.createSandbox(c.r.Context(), c.client, in, timeout)
		if err != nil {
			return 0, nil, err
		}
		status, answer, err := h.respondWithSandbox(c, http.StatusCreated, made)
		if err != nil { // a client without tokens could not delete the sandbox
			err = errors.Join(err, h.manager.Delete(context.WithoutCancel(c.r.Context()), made.ID))
		}
		return status, answer, err
	}
}

func (h *sandboxHandlers) createSandbox(ctx context.Context, client api.Principal, in createRequest, timeout time.Duration) (sandpit.Sandbox, error) {
	r, err := h.newRequest(ctx, client, in)
	if err == nil {
		timeout, err = parseSeconds("timeout", in.Timeout, timeout, 1)
	}
	if err != nil {
		h.manager.Events().Record(manager.Report{Actor: client.Owner, Action: "create", Err: err})
		return sandpit.Sandbox{}, err
	}
	begin := time.Now()
	r.Lease.Deadline = begin.Add(timeout)
	if timeout < createTime {
		r.Lease.Deadline = r.Lease.Deadline.Add(createTime) // it must not end while it is being created
	}
	made, err := h.createWithUser(ctx, r)
	if err != nil || timeout >= createTime && time.Since(begin) < time.Second {
		return made, err
	}
	// The timeout starts when the sandbox runs.
	return made, setLease(ctx, h.manager, made, timeout, r.Lease.Action)
}

// createTime is about how long creating a sandbox may take.
const createTime = 2 * time.Minute

// createWithUser creates a sandbox whose user is the account of E2B's images. If that fails
// because the image has no such account, it creates the sandbox without it.
func (h *sandboxHandlers) createWithUser(ctx context.Context, r manager.CreateRequest) (sandpit.Sandbox, error) {
	plain := r.Spec
	if _, saved := plain.Image.Snapshot(); saved || isTemplate(plain.Image) || h.userless.hasImage(ownImage{r.Owner, plain.Image}) {
		return h.manager.Create(ctx, r)
	}
	r.Spec.User = accountName
	made, err := h.manager.Create(ctx, r)
	if sandpit.CodeOf(err) != sandpit.Invalid {
		return made, err
	}
	r.Spec = plain
	made, second := h.manager.Create(ctx, r)
	if second != nil {
		return made, err
	}
	h.userless.addImage(ownImage{r.Owner, plain.Image})
	return made, nil
}

// ownImage is an image name of an owner. The same name can mean another image for others.
type ownImage struct {
	owner string
	image sandpit.Image
}

// imageSet is a set of images. All methods may be called concurrently.
type imageSet struct {
	mu     sync.Mutex
	images map[ownImage]bool
}

// hasImage reports whether the set has an image.
func (s *imageSet) hasImage(image ownImage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images[image]
}

// addImage adds an image to the set.
func (s *imageSet) addImage(image ownImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.images == nil {
		s.images = make(map[ownImage]bool)
	}
	s.images[image] = true
}

// newRequest converts a request to one of the manager.
func (h *sandboxHandlers) newRequest(ctx context.Context, client api.Principal, in createRequest) (r manager.CreateRequest, err error) {
	r.Owner, r.Admin = client.Owner, client.Admin
	r.Policy = store.Policy{IdleTimeout: -1} // only the timeout ends it
	if len(in.IAM) > 0 {
		return r, sandpit.Errorf(sandpit.Unsupported, "iam: sandpit does not give identities to sandboxes")
	}
	saved, image, configured, err := h.resolver.resolveImage(ctx, client, in.Template)
	if err != nil {
		return r, err
	}
	r.Configured = configured
	// Clients cannot name anything of the server's machine, but their snapshots can.
	r.Authorize = func(spec *sandpit.Spec) error {
		return h.access.AuthorizeSpec(client, spec, api.Consent{Image: configured})
	}
	m, err := h.newMark(in)
	if err != nil {
		return r, err
	}
	r.Spec.Image, r.Lease.Action = image, m.Timeout
	if r.Spec.Labels, err = m.toLabels(in.Metadata); err != nil {
		return r, err
	}
	r.Spec.Env, r.Spec.Mounts = in.Env, toMounts(in.Volumes)
	if saved != nil {
		if r.Spec.Network, err = h.egress.savedPolicy(*saved, in); err != nil {
			return r, err
		}
		return r, addSecrets(&r, in.Network)
	}
	if !isTemplate(image) {
		r.Spec.WorkDir = sandpit.HomeDir
	}
	if r.Spec.Network, err = h.egress.toPolicy(in.Network, in.Internet); err != nil {
		return r, err
	}
	if !r.Spec.Network.Online || isClosed(r.Spec.Network) {
		// Without a network now, it cannot get one later.
		r.Spec.Network, r.Offline = sandpit.NetworkPolicy{}, true
	}
	return r, addSecrets(&r, in.Network)
}

// addSecrets gives a new sandbox the values that the headers of its network refer to.
func addSecrets(r *manager.CreateRequest, n *network) error {
	if len(r.Spec.Network.Headers) == 0 {
		return nil
	}
	secrets, err := n.toSecrets()
	r.Setup = manager.NetworkSecrets(secrets)
	return err
}

// newMark returns the mark of a sandbox.
func (h *sandboxHandlers) newMark(in createRequest) (mark, error) {
	m := mark{Template: in.Template, Private: !h.public, Wakes: in.AutoResume.Enabled, Timeout: sandpit.ActionKill}
	if in.AutoPause {
		m.Timeout = sandpit.ActionPause
		if in.KeepMemory != nil && !*in.KeepMemory {
			m.Timeout = sandpit.ActionStop
		}
	}
	if m.Wakes && m.Timeout == sandpit.ActionStop {
		return m, sandpit.Errorf(sandpit.Invalid, "autoResume: a sandbox that keeps only its files (autoPauseMemory) is resumed by connect, not by requests")
	}
	if in.Network == nil {
		return m, nil
	}
	if in.Network.Public != nil {
		m.Private = m.Private || !*in.Network.Public
	}
	m.Host, m.HTTPS = in.Network.MaskHost, in.Network.HTTPSPorts
	return m, checkIngress(*in.Network)
}
