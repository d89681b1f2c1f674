package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const pathKeys = wire.Prefix + "/keys"

type keysIn struct {
	Cursor string `query:"cursor" maxLength:"200" doc:"The cursor of the previous page."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"The maximum number of items."`
}

type keysOut struct {
	Body wire.Page[wire.Key]
}

type newKeyIn struct {
	Body wire.NewKey
}

type createdKeyOut struct {
	Body wire.MadeKey
}

type keyIn struct {
	ID string `path:"id" maxLength:"200" doc:"ID of the key, not its secret."`
}

// keyHandlers serve API keys.
type keyHandlers struct {
	keys   *api.Keys
	access access
}

// addOperations adds the operations on API keys, which are for administrators.
func (h *keyHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathKeys, "listKeys", "List API keys"), h.listKeys)
	op := newOperation(http.MethodPost, pathKeys, "createKey", "Create an API key")
	op.DefaultStatus = http.StatusCreated
	addOperation(r, op, h.createKey)
	op = newOperation(http.MethodDelete, pathKeys+"/{id}", "deleteKey", "Delete an API key")
	op.Description = "The key stops working at once, and everything attached to it is closed."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *keyIn) (*struct{}, error) {
		if err := h.access.requireAdmin(ctx, "delete a key"); err != nil {
			return nil, err
		}
		err := h.keys.Delete(ctx, in.ID)
		h.access.reportAction(ctx, "delete a key", map[string]string{"key": in.ID}, err)
		return nil, err
	})
}

func (h *keyHandlers) listKeys(ctx context.Context, in *keysIn) (*keysOut, error) {
	if err := h.access.requireAdmin(ctx, "list keys"); err != nil {
		return nil, err
	}
	list, err := h.keys.List(ctx, in.Cursor, in.Limit+1)
	if err != nil {
		return nil, err
	}
	page := toPage(list, in.Limit, func(k store.Key) string { return k.ID })
	out := wire.Page[wire.Key]{Items: make([]wire.Key, 0, len(page.Items)), Next: page.Next}
	for _, k := range page.Items {
		out.Items = append(out.Items, toKey(k))
	}
	return &keysOut{out}, nil
}

func toKey(k store.Key) wire.Key {
	return wire.Key{
		ID: k.ID, Name: k.Name, Owner: k.Owner, Admin: k.Admin,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, LastUsedAt: k.LastUsedAt,
	}
}

func (h *keyHandlers) createKey(ctx context.Context, in *newKeyIn) (*createdKeyOut, error) {
	if err := h.access.requireAdmin(ctx, "create a key"); err != nil {
		return nil, err
	}
	made, secret, err := h.insertKey(ctx, in.Body)
	args := map[string]string{"owner": in.Body.Owner}
	if err == nil {
		args["key"] = made.ID
	}
	h.access.reportAction(ctx, "create a key", args, err)
	if err != nil {
		return nil, err
	}
	return &createdKeyOut{wire.MadeKey{Key: toKey(made), Secret: secret}}, nil
}

func (h *keyHandlers) insertKey(ctx context.Context, n wire.NewKey) (store.Key, string, error) {
	ttl, err := toDuration("ttl_seconds", n.TTL)
	if err != nil {
		return store.Key{}, "", err
	}
	if n.TTL > 0 && ttl <= 0 {
		return store.Key{}, "", sandpit.Errorf(sandpit.Invalid, "ttl_seconds: %g is too short", n.TTL)
	}
	return h.keys.Create(ctx, api.NewKey{Name: n.Name, Owner: n.Owner, Admin: n.Admin, TTL: ttl})
}
