package daytona

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// volume is a directory that outlives sandboxes.
type volume struct {
	ID           sandpit.ID `json:"id"`
	Name         string     `json:"name"`
	Organization string     `json:"organizationId"`
	State        string     `json:"state"`
	CreatedAt    time.Time  `json:"createdAt"`
	UpdatedAt    time.Time  `json:"updatedAt"`
	LastUsedAt   *time.Time `json:"lastUsedAt"`
	Error        *string    `json:"errorReason"`
}

// volumeHandlers serve volumes.
type volumeHandlers struct{ manager *manager.Manager }

// ownVolumes returns all volumes of an owner.
func (h *volumeHandlers) ownVolumes(ctx context.Context, owner string) ([]volume, error) {
	list, ids, err := h.manager.Volumes().List(ctx, store.VolumeFilter{Owner: owner})
	all := make([]volume, len(list))
	for i, v := range list {
		all[i] = volume{
			ID: ids[i], Name: v.Name, Organization: owner, State: "ready", CreatedAt: v.CreatedAt.UTC(), UpdatedAt: v.CreatedAt.UTC(),
		}
	}
	return all, err
}

// findVolume returns an owner's volume. NotFound.
func (h *volumeHandlers) findVolume(ctx context.Context, owner, text string, is func(volume) bool) (volume, error) {
	all, err := h.ownVolumes(ctx, owner)
	if err != nil {
		return volume{}, err
	}
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return volume{}, sandpit.Errorf(sandpit.NotFound, "Volume %.100q not found", text)
	}
	return all[i], nil
}

// findByNameOrID returns the volume of that ID, or of that name. NotFound.
func (h *volumeHandlers) findByNameOrID(ctx context.Context, owner, text string) (volume, error) {
	v, err := h.findVolume(ctx, owner, text, func(v volume) bool { return string(v.ID) == text })
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return h.findVolume(ctx, owner, text, func(v volume) bool { return v.Name == text })
	}
	return v, err
}

func (h *volumeHandlers) listVolumes(c *call) (int, any, error) {
	all, err := h.ownVolumes(c.r.Context(), c.client.Owner)
	return http.StatusOK, all, err
}

func (h *volumeHandlers) getVolume(c *call) (int, any, error) {
	id := c.r.PathValue("volume")
	v, err := h.findVolume(c.r.Context(), c.client.Owner, id, func(v volume) bool { return string(v.ID) == id })
	return http.StatusOK, v, err
}

func (h *volumeHandlers) getByName(c *call) (int, any, error) {
	name := c.r.PathValue("name")
	v, err := h.findVolume(c.r.Context(), c.client.Owner, name, func(v volume) bool { return v.Name == name })
	return http.StatusOK, v, err
}

func (h *volumeHandlers) createVolume(c *call) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if _, err := h.manager.Volumes().Create(c.r.Context(), manager.VolumeRequest{Owner: c.client.Owner, Name: in.Name}); err != nil {
		return 0, nil, describeQuota(err)
	}
	v, err := h.findVolume(c.r.Context(), c.client.Owner, in.Name, func(v volume) bool { return v.Name == in.Name })
	return http.StatusOK, v, err
}

func (h *volumeHandlers) deleteVolume(c *call) (int, any, error) {
	id := c.r.PathValue("volume")
	v, err := h.findVolume(c.r.Context(), c.client.Owner, id, func(v volume) bool { return string(v.ID) == id })
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, nil, h.manager.Volumes().Delete(c.r.Context(), c.client.Owner, v.Name)
}
