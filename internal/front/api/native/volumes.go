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

type madeVolumeOut struct {
	Location string `header:"Location" doc:"The path of the volume."`
	Body     sandpit.Volume
}

type volumeIn struct {
	Name  string `path:"name" maxLength:"63" doc:"The volume."`
	Owner string `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: the caller's own."`
}

type volumeOut struct {
	Body sandpit.Volume
}

type volumesIn struct {
	Cursor string `query:"cursor" maxLength:"100" doc:"That of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most so many."`
	Owner  string `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: everybody's, to them."`
}

type volumesOut struct {
	Body wire.Page[sandpit.Volume]
}

// volumeHandlers serve volumes.
type volumeHandlers struct {
	manager *manager.Manager
	access  access
}

// register adds the operations on volumes.
func (h *volumeHandlers) register(r *registrar) {
	op := newOperation(http.MethodPost, pathVolumes, "createVolume", "Make a volume")
	op.DefaultStatus = http.StatusCreated
	op.Description = "A directory that sandboxes of the same owner and provider can have as a mount, several at a time. It stays until it is deleted."
	addOperation(r, op, h.createVolume)
	op = newOperation(http.MethodGet, pathVolumes, "listVolumes", "List volumes")
	op.Description = "Without sizes, and without who has them."
	addOperation(r, op, h.listVolumes)
	op = newOperation(http.MethodGet, pathVolume, "getVolume", "Look at a volume")
	op.Description = "With its size, if the provider can count that, and the sandboxes that have it."
	addOperation(r, op, func(ctx context.Context, in *volumeIn) (*volumeOut, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use volumes of others")
		if err != nil {
			return nil, err
		}
		v, err := h.manager.Volumes().Get(ctx, owner, in.Name)
		return &volumeOut{v}, err
	})
	op = newOperation(http.MethodDelete, pathVolume, "deleteVolume", "Delete a volume with all of its files")
	op.Description = "409 while a sandbox has it, be that stopped."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *volumeIn) (*struct{}, error) {
		owner, err := h.access.actingOwner(ctx, in.Owner, "use volumes of others")
		if err != nil {
			return nil, err
		}
		return nil, h.manager.Volumes().Delete(ctx, owner, in.Name)
	})
}

func (h *volumeHandlers) createVolume(ctx context.Context, in *newVolumeIn) (*madeVolumeOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	v, err := h.manager.Volumes().Create(ctx, manager.VolumeRequest{Owner: p.Owner, Name: in.Body.Name, Provider: in.Body.Provider})
	if err != nil {
		return nil, err
	}
	return &madeVolumeOut{pathVolumes + "/" + v.Name, v}, nil
}

func (h *volumeHandlers) listVolumes(ctx context.Context, in *volumesIn) (*volumesOut, error) {
	owner, all, err := h.access.listOwner(ctx, in.Owner, "list volumes of others")
	if err != nil {
		return nil, err
	}
	f := store.VolumeFilter{Owner: owner, All: all, After: sandpit.ID(in.Cursor), Limit: in.Limit + 1}
	if in.Cursor != "" && f.After.Validate() != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "cursor %.40q: it is none", in.Cursor)
	}
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
