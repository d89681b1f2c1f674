package e2b

import (
	"context"
	"net/http"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// volume is a directory that outlives sandboxes.
type volume struct {
	ID   sandpit.ID `json:"volumeID"`
	Name string     `json:"name"`
}

// volumeToken is the token of volumes, which clients expect. It opens nothing: sandpit does
// not have the calls for files of volumes.
const volumeToken = "unsupported"

// volumeHandlers serve volumes.
type volumeHandlers struct {
	manager   *manager.Manager
	describer *describer
}

// volumeWithToken is a volume as clients that may use it get it.
type volumeWithToken struct {
	volume

	Token  string  `json:"token"`
	Domain *string `json:"domain"`
}

func (h *volumeHandlers) openVolume(v volume) volumeWithToken {
	return volumeWithToken{v, volumeToken, h.describer.domainName()}
}

// volumeMount is a mount of a volume in a sandbox.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// toMounts converts the mounts of a new sandbox.
func toMounts(asked []volumeMount) []sandpit.Mount {
	var all []sandpit.Mount
	for _, m := range asked {
		all = append(all, sandpit.Mount{Volume: m.Name, Target: m.Path})
	}
	return all
}

// volumeMounts returns the mounts of a sandbox's volumes.
func volumeMounts(b sandpit.Sandbox) []volumeMount {
	all := []volumeMount{}
	for _, m := range b.Spec.Mounts {
		if m.Volume != "" {
			all = append(all, volumeMount{m.Volume, m.Target})
		}
	}
	return all
}

// ownVolumes returns all volumes of an owner.
func (h *volumeHandlers) ownVolumes(ctx context.Context, owner string) ([]volume, error) {
	list, ids, err := h.manager.Volumes().List(ctx, store.VolumeFilter{Owner: owner})
	all := make([]volume, len(list))
	for i, v := range list {
		all[i] = volume{ids[i], v.Name}
	}
	return all, err
}

// findVolume returns the volume whose ID is in the path. NotFound.
func (h *volumeHandlers) findVolume(c *call) (volume, error) {
	all, err := h.ownVolumes(c.r.Context(), c.client.Owner)
	if err != nil {
		return volume{}, err
	}
	id := c.r.PathValue("id")
	i := slices.IndexFunc(all, func(v volume) bool { return string(v.ID) == id })
	if i < 0 {
		return volume{}, sandpit.Errorf(sandpit.NotFound, "Volume %.100s not found", id)
	}
	return all[i], nil
}

func (h *volumeHandlers) listVolumes(c *call) (int, any, error) {
	all, err := h.ownVolumes(c.r.Context(), c.client.Owner)
	return http.StatusOK, all, err
}

func (h *volumeHandlers) getVolume(c *call) (int, any, error) {
	v, err := h.findVolume(c)
	return http.StatusOK, h.openVolume(v), err
}

func (h *volumeHandlers) createVolume(c *call) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if _, err := h.manager.Volumes().Create(c.r.Context(), manager.VolumeRequest{Owner: c.client.Owner, Name: in.Name}); err != nil {
		return 0, nil, err
	}
	all, err := h.ownVolumes(c.r.Context(), c.client.Owner)
	if err != nil {
		return 0, nil, err
	}
	i := slices.IndexFunc(all, func(v volume) bool { return v.Name == in.Name })
	if i < 0 {
		return 0, nil, sandpit.Errorf(sandpit.Gone, "volume %s was deleted", in.Name)
	}
	return http.StatusCreated, h.openVolume(all[i]), nil
}

func (h *volumeHandlers) deleteVolume(c *call) (int, any, error) {
	v, err := h.findVolume(c)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.manager.Volumes().Delete(c.r.Context(), c.client.Owner, v.Name)
}
