package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Stats says what the server is busy with.
func (c *Client) Stats(ctx context.Context) (api.Stats, error) {
	return get[api.Stats](ctx, c, path("stats"), nil)
}

// Version says what the server is. It needs no key.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/version", nil)
}

// Ready returns nil when the server can make sandboxes. It needs no key.
//
// Unavailable: a part of it cannot work; the text says which.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/readyz"})
}

// Pools tells how the pools are doing.
func (c *Client) Pools(ctx context.Context) ([]api.Pool, error) {
	return items[api.Pool](ctx, c, path("pools"))
}

// Providers tells which places make sandboxes.
func (c *Client) Providers(ctx context.Context) ([]api.Provider, error) {
	return items[api.Provider](ctx, c, path("providers"))
}

// Events reads the audit trail.
type Events struct{ client *Client }

// EventFilter chooses events. Fields that are zero choose everything.
type EventFilter struct {
	Sandbox sandpit.ID
	Actor   string
	Action  string
	// After is the Seq of an event: only later ones.
	After int64
	// Limit is at most so many. Default: all.
	Limit int
}

func (f EventFilter) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"sandbox": string(f.Sandbox), "actor": f.Actor, "action": f.Action} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.After > 0 {
		query.Set("after", strconv.FormatInt(f.After, 10))
	}
	return query
}

// Events returns events in their order.
func (g Events) List(ctx context.Context, f EventFilter) ([]api.Event, error) {
	return pages[api.Event](ctx, g.client, path("events"), f.query(), f.Limit)
}

// VerifyEvents checks that nobody has changed the audit trail.
func (g Events) Verify(ctx context.Context) (api.Verdict, error) {
	return get[api.Verdict](ctx, g.client, path("events", "verify"), nil)
}

// Queue lists and repairs the operations that the server performs later.
type Queue struct{ client *Client }

// Queue lists what is to be done later, or, with dead, what failed for good.
func (g Queue) List(ctx context.Context, dead bool) ([]api.Message, error) {
	query := url.Values{}
	if dead {
		query.Set("state", "dead")
	}
	return pages[api.Message](ctx, g.client, path("queue"), query, 0)
}

// RetryMessage has something that failed for good tried again. NotFound, Conflict.
func (g Queue) Retry(ctx context.Context, id string) error {
	return g.client.do(ctx, call{method: http.MethodPost, path: path("queue", id, "retry")})
}

// DropMessage forgets something that failed for good. NotFound.
func (g Queue) Drop(ctx context.Context, id string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("queue", id)})
}

// Keys manages the API keys of the server. Only administrators may.
type Keys struct{ client *Client }

// Keys lists the API keys.
func (g Keys) List(ctx context.Context) ([]api.Key, error) {
	return pages[api.Key](ctx, g.client, path("keys"), url.Values{}, 0)
}

// CreateKey makes an API key for owner's sandboxes; a ttl of zero means for ever. With
// admin it reaches everything.
func (g Keys) Create(ctx context.Context, owner, name string, ttl time.Duration, admin bool) (api.MadeKey, error) {
	var k api.MadeKey
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("keys"), out: &k,
		in: wire.NewKey{Name: name, Owner: owner, Admin: admin, TTL: ttl.Seconds()},
	})
	return k, err
}

// DeleteKey takes an API key back. NotFound.
func (g Keys) Delete(ctx context.Context, id string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("keys", id)})
}

// SSHKeys manages the public keys that open sandboxes over SSH.
type SSHKeys struct{ client *Client }

// SSHKeys lists the public keys for SSH of an owner; "" is the caller, and others are for
// administrators.
func (g SSHKeys) List(ctx context.Context, owner string) ([]api.SSHKey, error) {
	page, err := get[wire.Page[api.SSHKey]](ctx, g.client, path("ssh-keys"), ofOwner(owner))
	return page.Items, err
}

func ofOwner(owner string) url.Values {
	if owner == "" {
		return nil
	}
	return url.Values{"owner": {owner}}
}

// AddSSHKey registers a public key, the line of a .pub file, for the sandboxes of an owner,
// as in SSHKeys. Without a name, the key's comment is its name. AlreadyExists.
func (g SSHKeys) Add(ctx context.Context, owner, name, publicKey string) (api.SSHKey, error) {
	var k api.SSHKey
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("ssh-keys"), out: &k, in: wire.NewSSHKey{PublicKey: publicKey, Name: name, Owner: owner},
	})
	return k, err
}

// RemoveSSHKey removes a public key of an owner, as in SSHKeys. NotFound.
func (g SSHKeys) Remove(ctx context.Context, owner, id string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("ssh-keys", id), query: ofOwner(owner)})
}

// OpenSSH returns a token for one SSH connection to a sandbox, which is good for a ttl; zero
// is a minute. NotFound. Unsupported: the server does not listen for SSH.
func (g Sandboxes) OpenSSH(ctx context.Context, id sandpit.ID, ttl time.Duration) (api.SSHToken, error) {
	var t api.SSHToken
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(id), "ssh"), out: &t, in: wire.SSHAccess{TTL: ttl.Seconds()},
	})
	return t, err
}

// Images manages the images on the server.
type Images struct{ client *Client }

// Images lists the images for a provider's sandboxes; "" is the server's usual one.
// Those of docker are its engine's, the others the server's cache.
func (g Images) List(ctx context.Context, provider string) ([]api.Image, error) {
	page, err := get[wire.Page[api.Image]](ctx, g.client, path("images"), ofProvider(provider))
	return page.Items, err
}

func ofProvider(name string) url.Values {
	if name == "" {
		return nil
	}
	return url.Values{"provider": {name}}
}

// PrePulls lists the images that the server makes ready when it starts.
func (g Images) PrePulls(ctx context.Context) ([]api.PrePull, error) {
	return items[api.PrePull](ctx, g.client, path("images", "pre-pull"))
}

// RemoveImage removes an image, by ID or name, from the server's cache. NotFound,
// Conflict: in use. Unsupported: the images of that provider are not the server's.
func (g Images) Remove(ctx context.Context, provider, id string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("images", id), query: ofProvider(provider)})
}

func get[T any](ctx context.Context, c *Client, at string, query url.Values) (T, error) {
	var out T
	err := c.do(ctx, call{method: http.MethodGet, path: at, query: query, out: &out, again: true})
	return out, err
}

func items[T any](ctx context.Context, c *Client, at string) ([]T, error) {
	page, err := get[wire.Page[T]](ctx, c, at, nil)
	return page.Items, err
}
