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

// volumes registers what outlives sandboxes.
func (s *server) volumes() {
	op := operation(http.MethodPost, pathVolumes, "createVolume", "Make a volume")
	op.DefaultStatus = http.StatusCreated
	op.Description = "A directory that sandboxes of the same owner and provider can have as a mount, several at a time. It stays until it is deleted."
	add(s, op, s.createVolume)
	op = operation(http.MethodGet, pathVolumes, "listVolumes", "List volumes")
	op.Description = "Without sizes, and without who has them."
	add(s, op, s.listVolumes)
	op = operation(http.MethodGet, pathVolume, "getVolume", "Look at a volume")
	op.Description = "With its size, if the provider can count that, and the sandboxes that have it."
	add(s, op, func(ctx context.Context, in *volumeIn) (*volumeOut, error) {
		owner, err := s.volumeOwner(ctx, in.Owner)
		if err != nil {
			return nil, err
		}
		v, err := s.Manager.Volume(ctx, owner, in.Name)
		return &volumeOut{v}, err
	})
	op = operation(http.MethodDelete, pathVolume, "deleteVolume", "Delete a volume with all of its files")
	op.Description = "409 while a sandbox has it, be that stopped."
	op.DefaultStatus = http.StatusNoContent
	add(s, op, func(ctx context.Context, in *volumeIn) (*struct{}, error) {
		owner, err := s.volumeOwner(ctx, in.Owner)
		if err != nil {
			return nil, err
		}
		return nil, s.Manager.DeleteVolume(ctx, owner, in.Name)
	})
}

// volumeOwner returns whose volumes a request is about.
func (s *server) volumeOwner(ctx context.Context, owner string) (string, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil || owner == "" || owner == p.Owner {
		return p.Owner, err
	}
	return owner, s.administrator(ctx, "use volumes of others")
}

func (s *server) createVolume(ctx context.Context, in *newVolumeIn) (*madeVolumeOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	v, err := s.Manager.CreateVolume(ctx, manager.VolumeRequest{Owner: p.Owner, Name: in.Body.Name, Provider: in.Body.Provider})
	if err != nil {
		return nil, err
	}
	return &madeVolumeOut{pathVolumes + "/" + v.Name, v}, nil
}

func (s *server) listVolumes(ctx context.Context, in *volumesIn) (*volumesOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	f := store.VolumeFilter{Owner: in.Owner, All: p.Admin && in.Owner == "", After: sandpit.ID(in.Cursor), Limit: in.Limit + 1}
	if !p.Admin {
		if in.Owner != "" && in.Owner != p.Owner {
			return nil, s.administrator(ctx, "list volumes of others")
		}
		f.Owner = p.Owner
	}
	if in.Cursor != "" && f.After.Validate() != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "cursor %.40q: it is none", in.Cursor)
	}
	list, ids, err := s.Manager.Volumes(ctx, f)
	if err != nil {
		return nil, err
	}
	page := wire.Page[sandpit.Volume]{Items: list}
	if len(list) > in.Limit {
		page.Items, page.Next = list[:in.Limit], string(ids[in.Limit-1])
	}
	return &volumesOut{page}, nil
}
