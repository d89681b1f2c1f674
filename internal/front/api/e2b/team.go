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

// teams tells whom a key belongs to.
func (s *Server) teams(c *call) (int, any, error) {
	// No key is told again that was made once.
	return http.StatusOK, []map[string]any{{"teamID": c.who.Owner, "name": c.who.Owner, "apiKey": "", "isDefault": true}}, nil
}

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

// mask is how a key looks whose secret is not told.
type mask struct {
	Prefix string `json:"prefix"`
	Length int    `json:"valueLength"`
	Begin  string `json:"maskedValuePrefix"`
	End    string `json:"maskedValueSuffix"`
}

func keyOf(k store.Key, secret string) key {
	out := key{ID: k.ID, Name: k.Name, Secret: secret, Mask: mask{Prefix: "e2b_", Length: 40}, CreatedAt: k.CreatedAt.UTC()}
	if !k.LastUsedAt.IsZero() {
		out.UsedAt = new(k.LastUsedAt.UTC())
	}
	return out
}

// administrator refuses everybody else, and tells of it.
func (s *Server) administrator(c *call, action string) error {
	if c.who.Admin {
		return nil
	}
	err := sandpit.Errorf(sandpit.PermissionDenied, "%s: this is for administrators", action)
	s.o.Manager.Events().Record(manager.Report{Actor: c.who.Owner, Action: action, Err: err, Restricted: true})
	return err
}

// keysAtOnce is how many keys are looked up at a time.
const keysAtOnce = 1000

// keys returns the keys of who asks.
func (s *Server) keys(c *call) (own []store.Key, err error) {
	for after := ""; ; {
		list, err := s.o.Keys.List(c.r.Context(), after, keysAtOnce)
		if err != nil {
			return nil, err
		}
		for _, k := range list {
			after = k.ID
			if k.Owner == c.who.Owner {
				own = append(own, k)
			}
		}
		if len(list) < keysAtOnce {
			return own, nil
		}
	}
}

// listKeys tells of the keys of who asks.
func (s *Server) listKeys(c *call) (int, any, error) {
	if err := s.administrator(c, "list keys"); err != nil {
		return 0, nil, err
	}
	own, err := s.keys(c)
	list := []key{}
	for _, k := range own {
		list = append(list, keyOf(k, ""))
	}
	return http.StatusOK, list, err
}

// createKey makes another key of who asks, who is an administrator. The key is none of
// an administrator.
func (s *Server) createKey(c *call) (int, any, error) {
	if err := s.administrator(c, "create a key"); err != nil {
		return 0, nil, err
	}
	var in struct {
		Name string `json:"name"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	made, secret, err := s.o.Keys.Create(c.r.Context(), api.NewKey{Name: in.Name, Owner: c.who.Owner})
	s.report(c, "create a key", made.ID, err)
	return http.StatusCreated, keyOf(made, secret), err
}

// deleteKey makes a key of who asks useless. NotFound: it is none of theirs.
func (s *Server) deleteKey(c *call) (int, any, error) {
	if err := s.administrator(c, "delete a key"); err != nil {
		return 0, nil, err
	}
	id := c.r.PathValue("key")
	err := s.ownKey(c, id)
	if err == nil {
		err = s.o.Keys.Delete(c.r.Context(), id)
	}
	s.report(c, "delete a key", id, err)
	return http.StatusNoContent, nil, err
}

// renameKey gives a key of who asks another name. NotFound: it is none of theirs.
func (s *Server) renameKey(c *call) (int, any, error) {
	if err := s.administrator(c, "rename a key"); err != nil {
		return 0, nil, err
	}
	var in struct {
		Name *string `json:"name"`
	}
	if err := c.read(&in); err != nil {
		return 0, nil, err
	}
	if in.Name == nil {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "name is missing")
	}
	id := c.r.PathValue("key")
	err := s.ownKey(c, id)
	if err == nil {
		err = s.o.Keys.Rename(c.r.Context(), id, *in.Name)
	}
	s.report(c, "rename a key", id, err)
	return http.StatusOK, nil, err
}

// ownKey refuses a key that is none of who asks.
func (s *Server) ownKey(c *call, id string) error {
	own, err := s.keys(c)
	if err == nil && !slices.ContainsFunc(own, func(k store.Key) bool { return k.ID == id }) {
		err = sandpit.Errorf(sandpit.NotFound, "API key %.100q not found", id)
	}
	return err
}

func (s *Server) report(c *call, action, id string, err error) {
	s.o.Manager.Events().Record(manager.Report{Actor: c.who.Owner, Action: action, Args: map[string]string{"key": cmp.Or(id, "none")}, Err: err})
}
