package e2b

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// guestVersion is the version of E2B's guest that ours stands for.
const guestVersion = "0.6.13"

// clientID is what E2B has for the name of a node.
const clientID = "sandpit"

// user is the account that E2B's images have for programs.
const user = "user"

// created is a new sandbox as its maker asks for it.
type created struct {
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

	// What is not there. What is said of a gateway for MCP is for statistics of E2B's:
	// the client itself starts the program, which a template has or has not.
	IAM map[string]any `json:"iam"`
}

// sandbox is what is told to who makes a sandbox or connects to it.
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

// describe tells of a sandbox to who may use it, with tokens of theirs.
func (s *Server) describe(ctx context.Context, b sandpit.Sandbox) (sandbox, error) {
	m, made := markOf(b)
	private := !made || m.Private
	guest, traffic, err := s.o.Tokens.AccessTokens(ctx, b.ID, private)
	if err != nil {
		return sandbox{}, err
	}
	out := sandbox{
		ID: b.ID, Template: m.Template, Alias: m.Template, Client: clientID, Version: guestVersion,
		GuestToken: guest, Domain: s.domain(),
	}
	if private {
		out.TrafficToken = &traffic
	}
	return out, nil
}

// answer is the answer to a call that gives a sandbox.
func (s *Server) answer(c *call, status int, b sandpit.Sandbox) (int, any, error) {
	out, err := s.describe(c.r.Context(), b)
	if err != nil {
		return 0, nil, err
	}
	return status, out, nil
}

func (s *Server) domain() *string {
	if d := s.o.Domain(); d != "" {
		return &d
	}
	return nil
}

// creating makes a sandbox, which has the timeout if nothing is said of one.
func (s *Server) creating(timeout time.Duration) handler {
	return func(c *call) (int, any, error) {
		var in created
		if err := c.read(&in); err != nil {
			return 0, nil, err
		}
		made, err := s.create(c.r.Context(), c.who, in, timeout)
		if err != nil {
			return 0, nil, err
		}
		status, answer, err := s.answer(c, http.StatusCreated, made)
		if err != nil { // a client that cannot reach it would not end it either
			err = errors.Join(err, s.o.Manager.Delete(context.WithoutCancel(c.r.Context()), made.ID))
		}
		return status, answer, err
	}
}

func (s *Server) create(ctx context.Context, who api.Principal, in created, timeout time.Duration) (sandpit.Sandbox, error) {
	r, err := s.request(ctx, who, in)
	if err == nil {
		timeout, err = span("timeout", in.Timeout, timeout, 1)
	}
	if err != nil {
		s.o.Manager.Events().Record(manager.Report{Actor: who.Owner, Action: "create", Err: err})
		return sandpit.Sandbox{}, err
	}
	begin := time.Now()
	r.Lease.Deadline = begin.Add(timeout)
	if timeout < makingLimit {
		r.Lease.Deadline = r.Lease.Deadline.Add(makingLimit) // it must not end while it is made
	}
	made, err := s.make(ctx, r)
	if err != nil || timeout >= makingLimit && time.Since(begin) < time.Second {
		return made, err
	}
	// The time counts from when it runs.
	return made, s.lease(ctx, made, timeout, r.Lease.Action)
}

// makingLimit is how long making a sandbox may take, about.
const makingLimit = 2 * time.Minute

// make makes a sandbox, with the account for programs that E2B's images have unless
// the image has none. That is found out by trying.
func (s *Server) make(ctx context.Context, r manager.CreateRequest) (sandpit.Sandbox, error) {
	plain := r.Spec
	if _, saved := plain.Image.Snapshot(); saved || s.isTemplate(plain.Image) || s.isUserless(ownImage{r.Owner, plain.Image}) {
		return s.o.Manager.Create(ctx, r)
	}
	r.Spec.User = user
	made, err := s.o.Manager.Create(ctx, r)
	if sandpit.CodeOf(err) != sandpit.Invalid {
		return made, err
	}
	r.Spec = plain
	made, second := s.o.Manager.Create(ctx, r)
	if second != nil {
		return made, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.userless[ownImage{r.Owner, plain.Image}] = true
	return made, nil
}

// ownImage is what an owner means by the name of an image.
type ownImage struct {
	owner string
	image sandpit.Image
}

func (s *Server) isUserless(image ownImage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.userless[image]
}

// request puts what is asked for into the words of the manager.
func (s *Server) request(ctx context.Context, who api.Principal, in created) (r manager.CreateRequest, err error) {
	r.Owner, r.Admin = who.Owner, who.Admin
	r.Policy = store.Policy{IdleTimeout: -1} // the timeout is all that ends it
	if len(in.IAM) > 0 {
		return r, sandpit.Errorf(sandpit.Unsupported, "iam: sandpit gives sandboxes no identities")
	}
	saved, image, configured, err := s.origin(ctx, who, in.Template)
	if err != nil {
		return r, err
	}
	r.Configured = configured
	m, err := s.markFor(in)
	if err != nil {
		return r, err
	}
	r.Spec.Image, r.Lease.Action = image, m.Timeout
	if r.Spec.Labels, err = m.labels(in.Metadata); err != nil {
		return r, err
	}
	r.Spec.Env, r.Spec.Mounts = in.Env, mounts(in.Volumes)
	if saved != nil {
		if r.Spec.Network, err = s.savedPolicy(*saved, in); err != nil {
			return r, err
		}
		return r, giveSecrets(&r, in.Network)
	}
	if !s.isTemplate(image) {
		r.Spec.WorkDir = sandpit.HomeDir
	}
	if r.Spec.Network, err = s.policy(in.Network, in.Internet); err != nil {
		return r, err
	}
	if !r.Spec.Network.Online || isClosed(r.Spec.Network) {
		// It cannot be opened later, and needs no network for that.
		r.Spec.Network, r.Offline = sandpit.NetworkPolicy{}, true
	}
	return r, giveSecrets(&r, in.Network)
}

// giveSecrets has a new sandbox know what the headers of its network refer to.
func giveSecrets(r *manager.CreateRequest, n *network) error {
	if len(r.Spec.Network.Headers) == 0 {
		return nil
	}
	secrets, err := n.secrets()
	r.Setup = manager.NetworkSecrets(secrets)
	return err
}

// markFor is what is to be known later of a sandbox that is made so.
func (s *Server) markFor(in created) (mark, error) {
	m := mark{Template: in.Template, Private: !s.o.Public, Wakes: in.AutoResume.Enabled, Timeout: sandpit.ActionKill}
	if in.AutoPause {
		m.Timeout = sandpit.ActionPause
		if in.KeepMemory != nil && !*in.KeepMemory {
			m.Timeout = sandpit.ActionStop
		}
	}
	if m.Wakes && m.Timeout == sandpit.ActionStop {
		return m, sandpit.Errorf(sandpit.Invalid, "autoResume: a sandbox that keeps its files only (autoPauseMemory) is resumed by connect, and not by requests")
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

// limits are those of a sandbox, as far as they are known.
func (s *Server) limits(b sandpit.Sandbox) sandpit.Resources {
	r, usual := b.Spec.Resources, s.o.Limits
	return sandpit.Resources{
		Memory: cmp.Or(r.Memory, usual.Memory), CPUs: cmp.Or(r.CPUs, usual.CPUs),
		Disk: cmp.Or(r.Disk, usual.Disk), PIDs: cmp.Or(r.PIDs, usual.PIDs),
	}
}
