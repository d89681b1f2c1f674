package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	pathVolumes = wire.Prefix + "/volumes"
	pathVolume  = pathVolumes + "/{name}"
)

type newVolumeIn struct {
	Body wire.NewVolume
}

type createdVolumeOut struct {
	Location string `header:"Location" doc:"The path of the volume."`
	Body     sandpit.Volume
}

type volumeIn struct {
	Name  string `path:"name" maxLength:"63" doc:"Name of the volume."`
	Owner string `query:"owner" maxLength:"200" doc:"The owner; only administrators may name another owner. Default: the client's own."`
}

type volumeOut struct {
	Body sandpit.Volume
}

type volumesIn struct {
	PageIn
	OwnerIn
}

type volumesOut struct {
	Body wire.Page[sandpit.Volume]
}

// volumeHandlers serve volumes.
type volumeHandlers struct {
	manager *manager.Manager
	access  access
}

// addOperations adds the operations on volumes.
func (h *volumeHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodPost, pathVolumes, "createVolume", "Create a volume")
	op.DefaultStatus = http.StatusCreated
	op.Description = "A volume is a directory that several sandboxes of the same owner and provider can mount. It exists until it is deleted."
	addOperation(r, op, h.createVolume)
	op = newOperation(http.MethodGet, pathVolumes, "listVolumes", "List volumes")
	op.Description = "Without their sizes and sandboxes."
	addOperation(r, op, h.listVolumes)
	op = newOperation(http.MethodGet, pathVolume, "getVolume", "Get a volume")
	op.Description = "With its size, if the provider can measure it, and the sandboxes that mount it."
	addOperation(r, op, func(ctx context.Context, in *volumeIn) (*volumeOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use volumes of others")
		if err != nil {
			return nil, err
		}
		v, err := h.manager.Volumes().Get(ctx, owner, in.Name)
		return &volumeOut{v}, err
	})
	op = newOperation(http.MethodDelete, pathVolume, "deleteVolume", "Delete a volume with all of its files")
	op.Description = "409 while a sandbox mounts it, even a stopped one."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *volumeIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use volumes of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Volumes().Delete(ctx, owner, in.Name)
	})
}

func (h *volumeHandlers) createVolume(ctx context.Context, in *newVolumeIn) (*createdVolumeOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	v, err := h.manager.Volumes().Create(ctx, manager.VolumeRequest{Owner: p.Owner, Name: in.Body.Name, Provider: in.Body.Provider})
	if err != nil {
		return nil, err
	}
	return &createdVolumeOut{pathVolumes + "/" + v.Name, v}, nil
}

func (h *volumeHandlers) listVolumes(ctx context.Context, in *volumesIn) (*volumesOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list volumes of others")
	if err != nil {
		return nil, err
	}
	after, err := parseCursor[sandpit.ID](in.Cursor)
	if err != nil {
		return nil, err
	}
	f := store.VolumeFilter{Owner: owner, All: all, After: after, Limit: in.Limit + 1}
	list, ids, err := h.manager.Volumes().List(ctx, f)
	if err != nil {
		return nil, err
	}
	page := wire.Page[sandpit.Volume]{Items: list}
	if len(list) > in.Limit {
		page.Items, page.Next = list[:in.Limit], string(ids[in.Limit-1])
	}
	return &volumesOut{page}, nil
}
