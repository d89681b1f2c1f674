package native

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Previews give access to ports of sandboxes. All methods may be called concurrently, with
// the context of a request whose client must own the sandbox.
type Previews interface {
	URL(ctx context.Context, id sandpit.ID, port int, life time.Duration, note string) (wire.PreviewURL, error)
	// Ticket is like URL, for one browser and one use.
	Ticket(ctx context.Context, id sandpit.ID, port int, life, session time.Duration) (wire.PreviewTicket, error)
	SetPublic(ctx context.Context, id sandpit.ID, port int, public bool) error
	// Revoke makes a port private and revokes all of its URLs.
	Revoke(ctx context.Context, id sandpit.ID, port int) error
	// Public lists the public ports of a sandbox.
	Public(id sandpit.ID) []int
}

// PortPath names a port of a sandbox. It is exported because huma requires that of embedded
// types.
type PortPath struct {
	SandboxPath

	Port int `path:"port" minimum:"1" maximum:"65535" doc:"The port in the sandbox."`
}

type previewIn struct {
	PortPath

	Body wire.NewPreviewURL
}

type ticketIn struct {
	PortPath

	Body wire.NewPreviewTicket
}

type accessIn struct {
	PortPath

	Body wire.PortAccess
}

type previewOut struct{ Body wire.PreviewURL }

type ticketOut struct{ Body wire.PreviewTicket }

type portsOut struct{ Body wire.Page[wire.SharedPort] }

// previewHandlers serve the ports of sandboxes that are reached without a key.
type previewHandlers struct {
	manager  *manager.Manager
	previews Previews
}

// addOperations adds the operations on ports.
func (h *previewHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathSandbox+"/ports", "listPorts", "List the ports of a sandbox that need no key"), h.listPorts)
	const path = pathSandbox + "/ports/{port}"
	op := newOperation(http.MethodPost, path+"/url", "createPreviewURL", "Create a URL of a port")
	op.Description = "Everyone with the URL can see the port until the URL expires. The URL of a public port never expires."
	op.DefaultStatus = http.StatusCreated
	addOperation(r, op, func(ctx context.Context, in *previewIn) (*previewOut, error) {
		life, err := toDuration("expires_seconds", in.Body.Expires)
		if err != nil {
			return nil, err
		}
		u, err := h.previews.URL(ctx, in.ID, in.Port, life, in.Body.Note)
		return &previewOut{u}, err
	})
	op = newOperation(http.MethodPost, path+"/ticket", "createPreviewTicket", "Create a single-use URL of a port for one browser")
	op.Description = "The browser exchanges the ticket in the URL for a cookie of this port. The ticket works once and does not survive a restart of the server."
	op.DefaultStatus = http.StatusCreated
	addOperation(r, op, h.createTicket)
	op = newOperation(http.MethodPut, path, "setPortAccess", "Make a port public or private")
	op.Description = "Existing URLs stay valid."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *accessIn) (*struct{}, error) {
		return nil, h.previews.SetPublic(ctx, in.ID, in.Port, in.Body.Public)
	})
	op = newOperation(http.MethodDelete, path, "closePort", "Make a port private and revoke all of its URLs")
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *PortPath) (*struct{}, error) {
		return nil, h.previews.Revoke(ctx, in.ID, in.Port)
	})
}

func (h *previewHandlers) createTicket(ctx context.Context, in *ticketIn) (*ticketOut, error) {
	life, err := toDuration("expires_seconds", in.Body.Expires)
	if err != nil {
		return nil, err
	}
	session, err := toDuration("session_seconds", in.Body.Session)
	if err != nil {
		return nil, err
	}
	t, err := h.previews.Ticket(ctx, in.ID, in.Port, life, session)
	return &ticketOut{t}, err
}

func (h *previewHandlers) listPorts(ctx context.Context, in *SandboxPath) (*portsOut, error) {
	found, err := api.Find(ctx, h.manager, in.ID)
	if err != nil {
		return nil, err
	}
	list := []wire.SharedPort{}
	for _, p := range found.Spec.Ports {
		list = append(list, wire.SharedPort{Port: p.Port, Address: p.Address()})
	}
	for _, port := range h.previews.Public(in.ID) {
		list = append(list, wire.SharedPort{Port: port, Public: true})
	}
	return &portsOut{wire.Page[wire.SharedPort]{Items: list}}, nil
}

// noPreviews is Previews of a server without a preview proxy.
type noPreviews struct{}

var errNoPreviews = sandpit.Errorf(sandpit.Unsupported, "this server has no previews")

func (noPreviews) URL(context.Context, sandpit.ID, int, time.Duration, string) (wire.PreviewURL, error) {
	return wire.PreviewURL{}, errNoPreviews
}

func (noPreviews) Ticket(context.Context, sandpit.ID, int, time.Duration, time.Duration) (wire.PreviewTicket, error) {
	return wire.PreviewTicket{}, errNoPreviews
}

func (noPreviews) SetPublic(context.Context, sandpit.ID, int, bool) error { return errNoPreviews }
func (noPreviews) Revoke(context.Context, sandpit.ID, int) error          { return errNoPreviews }
func (noPreviews) Public(sandpit.ID) []int                                { return nil }
