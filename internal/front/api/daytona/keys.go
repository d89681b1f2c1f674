package daytona

import (
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// keyHandlers serve API keys. Clients name them by their names. Only administrators may list, create
// and delete keys, as in sandpit's own API.
type keyHandlers struct {
	manager *manager.Manager
	keys    *api.Keys
}

// permissions are the permissions of every key.
var permissions = []string{
	"write:snapshots", "delete:snapshots", "write:sandboxes", "delete:sandboxes", "read:volumes", "write:volumes", "delete:volumes",
}

// getCurrentKey describes the key of the request.
func (h *keyHandlers) getCurrentKey(c *call) (int, any, error) {
	if c.client.KeyID == "" {
		return 0, nil, sandpit.Errorf(sandpit.NotFound, "this request has no API key")
	}
	k, err := h.keys.Get(c.r.Context(), c.client.KeyID)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, describeKey(k), nil
}

func describeKey(k store.Key) map[string]any {
	out := map[string]any{
		"name": k.Name, "value": "********", "createdAt": k.CreatedAt.UTC(), "permissions": permissions,
		"lastUsedAt": nil, "expiresAt": nil, "userId": k.Owner,
	}
	if !k.LastUsedAt.IsZero() {
		out["lastUsedAt"] = k.LastUsedAt.UTC()
	}
	if !k.ExpiresAt.IsZero() {
		out["expiresAt"] = k.ExpiresAt.UTC()
	}
	return out
}

// requireAdmin returns an error, which it reports, unless the client is an administrator.
func (h *keyHandlers) requireAdmin(c *call, action string) error {
	if c.client.Admin {
		return nil
	}
	err := sandpit.Errorf(sandpit.PermissionDenied, "%s: only administrators may do this", action)
	h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: action, Err: err, Restricted: true})
	return err
}

// reportAction records an action on a key.
func (h *keyHandlers) reportAction(c *call, action, id string, err error) {
	h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: action, Args: map[string]string{"key": id}, Err: err, Restricted: true})
}

// keysAtOnce is how many keys are read at a time.
const keysAtOnce = 1000

// ownKeys returns the keys of the client's owner.
func (h *keyHandlers) ownKeys(c *call) (own []store.Key, err error) {
	for after := ""; ; {
		list, err := h.keys.List(c.r.Context(), after, keysAtOnce)
		if err != nil {
			return nil, err
		}
		for _, k := range list {
			if after = k.ID; k.Owner == c.client.Owner {
				own = append(own, k)
			}
		}
		if len(list) < keysAtOnce {
			return own, nil
		}
	}
}

// findKey returns the key of the client's owner with the name in the path. NotFound.
func (h *keyHandlers) findKey(c *call, name string) (store.Key, error) {
	own, err := h.ownKeys(c)
	if err != nil {
		return store.Key{}, err
	}
	for _, k := range own {
		if k.Name == name {
			return k, nil
		}
	}
	return store.Key{}, sandpit.Errorf(sandpit.NotFound, "API key %.100q not found", name)
}

// listKeys lists the keys of the client's owner.
func (h *keyHandlers) listKeys(c *call) (int, any, error) {
	if err := h.requireAdmin(c, "list keys"); err != nil {
		return 0, nil, err
	}
	own, err := h.ownKeys(c)
	list := []map[string]any{}
	for _, k := range own {
		list = append(list, describeKey(k))
	}
	return http.StatusOK, list, err
}

func (h *keyHandlers) getKey(c *call) (int, any, error) {
	if err := h.requireAdmin(c, "list keys"); err != nil {
		return 0, nil, err
	}
	k, err := h.findKey(c, c.r.PathValue("name"))
	return http.StatusOK, describeKey(k), err
}

// createKey creates a key of the client's owner, which has all permissions but is not an
// administrator's.
func (h *keyHandlers) createKey(c *call) (int, any, error) {
	var in struct {
		Name      string     `json:"name"`
		ExpiresAt *time.Time `json:"expiresAt"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if err := h.requireAdmin(c, "create a key"); err != nil {
		return 0, nil, err
	}
	n := api.NewKey{Name: in.Name, Owner: c.client.Owner}
	if in.ExpiresAt != nil {
		if n.TTL = time.Until(*in.ExpiresAt); n.TTL <= 0 {
			return 0, nil, sandpit.Errorf(sandpit.Invalid, "expiresAt %s: the time is over", in.ExpiresAt.Format(time.RFC3339))
		}
	}
	switch _, err := h.findKey(c, in.Name); {
	case in.Name == "":
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "name is missing")
	case err == nil:
		return 0, nil, sandpit.Errorf(sandpit.AlreadyExists, "API key with name %.100q already exists", in.Name)
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return 0, nil, err
	}
	made, secret, err := h.keys.Create(c.r.Context(), n)
	h.reportAction(c, "create a key", made.ID, err)
	if err != nil {
		return 0, nil, describeQuota(err)
	}
	out := describeKey(made)
	out["value"] = secret
	return http.StatusCreated, out, nil
}

// deleteKey deletes a key of the client's owner.
func (h *keyHandlers) deleteKey(c *call) (int, any, error) {
	if err := h.requireAdmin(c, "delete a key"); err != nil {
		return 0, nil, err
	}
	k, err := h.findKey(c, c.r.PathValue("name"))
	if err == nil {
		err = h.keys.Delete(c.r.Context(), k.ID)
		h.reportAction(c, "delete a key", k.ID, err)
	}
	return http.StatusNoContent, nil, err
}
