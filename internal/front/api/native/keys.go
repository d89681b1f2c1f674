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

const pathKeys = wire.Prefix + "/keys"

type keysIn struct {
	Cursor string `query:"cursor" maxLength:"200" doc:"That of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"At most so many."`
}

type keysOut struct {
	Body wire.Page[wire.Key]
}

type newKeyIn struct {
	Body wire.NewKey
}

type madeKeyOut struct {
	Body wire.MadeKey
}

type keyIn struct {
	ID string `path:"id" maxLength:"200" doc:"The key; not its secret."`
}

// keys registers what lets others in. All of it is for administrators.
func (s *server) keys() {
	add(s, operation(http.MethodGet, pathKeys, "listKeys", "List API keys"), s.listKeys)
	op := operation(http.MethodPost, pathKeys, "createKey", "Make an API key")
	op.DefaultStatus = http.StatusCreated
	add(s, op, s.createKey)
	op = operation(http.MethodDelete, pathKeys+"/{id}", "deleteKey", "Delete an API key")
	op.Description = "From then on it is good for nothing."
	op.DefaultStatus = http.StatusNoContent
	add(s, op, func(ctx context.Context, in *keyIn) (*struct{}, error) {
		if err := s.administrator(ctx, "delete a key"); err != nil {
			return nil, err
		}
		err := s.Keys.Delete(ctx, in.ID)
		s.tellOf(ctx, "delete a key", map[string]string{"key": in.ID}, err)
		return nil, err
	})
}

// tellOf adds something that was done to the trail of events.
func (s *server) tellOf(ctx context.Context, action string, args map[string]string, err error) {
	p, _ := api.PrincipalOf(ctx) // it was asked for before
	s.Manager.Report(manager.Report{Actor: p.Owner, Action: action, Args: args, Err: err})
}

func (s *server) listKeys(ctx context.Context, in *keysIn) (*keysOut, error) {
	if err := s.administrator(ctx, "list keys"); err != nil {
		return nil, err
	}
	list, err := s.Keys.List(ctx, in.Cursor, in.Limit+1)
	if err != nil {
		return nil, err
	}
	page := paged(list, in.Limit, func(k store.Key) string { return k.ID })
	out := wire.Page[wire.Key]{Items: make([]wire.Key, 0, len(page.Items)), Next: page.Next}
	for _, k := range page.Items {
		out.Items = append(out.Items, key(k))
	}
	return &keysOut{out}, nil
}

func key(k store.Key) wire.Key {
	return wire.Key{
		ID: k.ID, Name: k.Name, Owner: k.Owner, Admin: k.Admin,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, LastUsedAt: k.LastUsedAt,
	}
}

func (s *server) createKey(ctx context.Context, in *newKeyIn) (*madeKeyOut, error) {
	if err := s.administrator(ctx, "create a key"); err != nil {
		return nil, err
	}
	made, secret, err := s.newKey(ctx, in.Body)
	args := map[string]string{"owner": in.Body.Owner}
	if err == nil {
		args["key"] = made.ID
	}
	s.tellOf(ctx, "create a key", args, err)
	if err != nil {
		return nil, err
	}
	return &madeKeyOut{wire.MadeKey{Key: key(made), Secret: secret}}, nil
}

func (s *server) newKey(ctx context.Context, n wire.NewKey) (store.Key, string, error) {
	ttl, err := seconds("ttl_seconds", n.TTL)
	if err != nil {
		return store.Key{}, "", err
	}
	if n.TTL > 0 && ttl <= 0 {
		return store.Key{}, "", sandpit.Errorf(sandpit.Invalid, "ttl_seconds: %g is too short", n.TTL)
	}
	return s.Keys.Create(ctx, api.NewKey{Name: n.Name, Owner: n.Owner, Admin: n.Admin, TTL: ttl})
}
