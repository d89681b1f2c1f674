package native

import (
	"context"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

type createIn struct {
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"Makes this a request that can be repeated: while the sandbox exists, the same request returns it."`
	Body wire.CreateRequest
}

type createOut struct {
	Location string `header:"Location" doc:"The path of the sandbox."`
	Body     sandpit.Sandbox
}

// createSchema describes the JSON form of a wire.CreateRequest, which it is used for in the
// description of the API.
type createSchema struct {
	Spec           sandpit.Spec      `json:"spec,omitzero" doc:"The sandbox to create."`
	Provider       string            `json:"provider,omitempty" doc:"Name of the provider that creates the sandbox, or several in the order of preference, separated by commas. Default: the server's."`
	Providers      []string          `json:"providers,omitempty" doc:"The same as a list: if one cannot create the sandbox, the next one does."`
	Timeout        float64           `json:"timeout_seconds,omitempty" doc:"Seconds from now to the deadline. Default: the server's; below zero: no deadline."`
	OnTimeout      sandpit.Action    `json:"on_timeout,omitempty" enum:"kill,stop,pause,suspend" doc:"The action at the deadline. Default: kill."`
	Policy         sandpit.Policy    `json:"policy,omitzero" doc:"What happens when the sandbox is idle, or when it ends unexpectedly."`
	Offline        bool              `json:"offline,omitempty" doc:"The sandbox gets no network, even if the server's default is to give one."`
	NetworkSecrets map[string]string `json:"network_secrets,omitempty" writeOnly:"true" doc:"Values that headers of spec.network refer to. The server keeps them in memory and never returns them."`
	Secrets        map[string]string `json:"secrets,omitempty" writeOnly:"true" doc:"Environment variables of the sandbox's programs that no response, snapshot or fork contains. The server keeps them until the sandbox is deleted."`
	AllowPaths     []string          `json:"allow_paths,omitempty" doc:"Paths of the server's machine that mounts may use although the server refuses them otherwise, such as home directories. For administrators."`
	Repository     *wire.Repository  `json:"repository,omitempty" doc:"A repository to clone before the sandbox counts as running. If that fails, no sandbox is created."`
	CreateTimeout  float64           `json:"create_timeout_seconds,omitempty" minimum:"0" doc:"Seconds that creating the sandbox may take, once its image is available and its turn has come. Default: the server's."`
}

func (h *sandboxHandlers) createSandbox(ctx context.Context, in *createIn) (*createOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	r := NewRequest(p, in.Body, h.hosts)
	r.Key = in.Key
	made, err := h.manager.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return &createOut{pathSandboxes + "/" + string(made.ID), made}, nil
}

// NewRequest converts a client's request for a sandbox to one of the manager, which authorizes it
// when it has expanded it.
func NewRequest(p api.Principal, w wire.CreateRequest, hosts api.HostAccess) manager.CreateRequest {
	r := manager.CreateRequest{
		Owner: p.Owner, Admin: p.Admin, Provider: w.Provider, Spec: w.Spec, Secrets: w.Secrets, Offline: w.Offline, Policy: w.Policy,
		Lease: sandpit.Lease{Action: w.OnTimeout}, Endless: w.Timeout < 0, Timeout: w.CreateTimeout, Setup: newSetup(w),
		Authorize: func(spec *sandpit.Spec) error {
			return hosts.AuthorizeSpec(p, spec, api.Consent{Paths: w.AllowPaths})
		},
	}
	if len(w.Providers) > 0 {
		r.Provider = strings.Join(w.Providers, ",")
	}
	if w.Timeout > 0 {
		r.Lease.Deadline = time.Now().Add(w.Timeout)
	}
	return r
}
