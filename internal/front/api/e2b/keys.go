package e2b

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// key is an API key without its secret.
type key struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Secret    string     `json:"key,omitempty"`
	Mask      mask       `json:"mask"`
	CreatedAt time.Time  `json:"createdAt"`
	CreatedBy *struct{}  `json:"createdBy"`
	UsedAt    *time.Time `json:"lastUsed"`
}

// mask shows what a key looks like, without its secret.
type mask struct {
	Prefix string `json:"prefix"`
	Length int    `json:"valueLength"`
	Begin  string `json:"maskedValuePrefix"`
	End    string `json:"maskedValueSuffix"`
}

func toKey(k store.Key, secret string) key {
	out := key{ID: k.ID, Name: k.Name, Secret: secret, Mask: mask{Prefix: "e2b_", Length: 40}, CreatedAt: k.CreatedAt.UTC()}
	if !k.LastUsedAt.IsZero() {
		out.UsedAt = new(k.LastUsedAt.UTC())
	}
	return out
}

// requireAdmin returns an error, which it reports, unless the client is an administrator.
func requireAdmin(c *call, m *manager.Manager, action string) error {
	if c.client.Admin {
		return nil
	}
	err := sandpit.Errorf(sandpit.PermissionDenied, "%s: only administrators may do this", action)
	m.Events().Record(manager.Report{Actor: c.client.Owner, Action: action, Err: err, Restricted: true})
	return err
}

// keyHandlers serve API keys.
type keyHandlers struct {
	manager *manager.Manager
	keys    *api.Keys
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
			after = k.ID
			if k.Owner == c.client.Owner {
				own = append(own, k)
			}
		}
		if len(list) < keysAtOnce {
			return own, nil
		}
	}
}

// listKeys lists the keys of the client's owner.
func (h *keyHandlers) listKeys(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "list keys"); err != nil {
		return 0, nil, err
	}
	own, err := h.ownKeys(c)
	list := []key{}
	for _, k := range own {
		list = append(list, toKey(k, ""))
	}
	return http.StatusOK, list, err
}

// createKey creates a key of the client's owner. The client must be an administrator; the key
// does not give these rights.
func (h *keyHandlers) createKey(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "create a key"); err != nil {
		return 0, nil, err
	}
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	made, secret, err := h.keys.Create(c.r.Context(), api.NewKey{Name: in.Name, Owner: c.client.Owner})
	h.reportAction(c, "create a key", made.ID, err)
	return http.StatusCreated, toKey(made, secret), err
}

// deleteKey deletes a key of the client's owner. NotFound: it has no such key.
func (h *keyHandlers) deleteKey(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "delete a key"); err != nil {
		return 0, nil, err
	}
	id := c.r.PathValue("key")
	err := h.checkOwnKey(c, id)
	if err == nil {
		err = h.keys.Delete(c.r.Context(), id)
	}
	h.reportAction(c, "delete a key", id, err)
	return http.StatusNoContent, nil, err
}

// renameKey renames a key of the client's owner. NotFound: it has no such key.
func (h *keyHandlers) renameKey(c *call) (int, any, error) {
	if err := requireAdmin(c, h.manager, "rename a key"); err != nil {
		return 0, nil, err
	}
	var in struct {
		Name *string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	if in.Name == nil {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "name is missing")
	}
	id := c.r.PathValue("key")
	err := h.checkOwnKey(c, id)
	if err == nil {
		err = h.keys.Rename(c.r.Context(), id, *in.Name)
	}
	h.reportAction(c, "rename a key", id, err)
	return http.StatusOK, nil, err
}

// checkOwnKey returns NotFound unless the client's owner has the key.
func (h *keyHandlers) checkOwnKey(c *call, id string) error {
	own, err := h.ownKeys(c)
	if err == nil && !slices.ContainsFunc(own, func(k store.Key) bool { return k.ID == id }) {
		err = sandpit.Errorf(sandpit.NotFound, "API key %.100q not found", id)
	}
	return err
}

// reportAction records an action on a key in the audit trail.
func (h *keyHandlers) reportAction(c *call, action, id string, err error) {
	h.manager.Events().Record(manager.Report{Actor: c.client.Owner, Action: action, Args: map[string]string{"key": cmp.Or(id, "none")}, Err: err})
}
