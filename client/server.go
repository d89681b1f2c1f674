package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// What the server tells of itself.
type (
	// Stats say what the server is busy with.
	Stats = wire.Stats
	// Version says what the server is.
	Version = wire.Version
	// Pool is how a pool is doing.
	Pool = wire.Pool
	// Provider is one of the places that make sandboxes.
	Provider = wire.Provider
	// Event is one line of the audit trail.
	Event = wire.Event
	// Verdict says whether the audit trail is whole.
	Verdict = wire.Verdict
	// Message is one operation that is to be done later, or that failed for good.
	Message = wire.Message
	// Key is an API key, without its secret.
	Key = wire.Key
	// MadeKey is a new key with its secret.
	MadeKey = wire.MadeKey
	// SSHKey is a public key that reaches the sandboxes of its owner by SSH.
	SSHKey = wire.SSHKey
	// SSHToken is a way into one sandbox by SSH, once.
	SSHToken = wire.SSHToken
	// Image is an image of the server's cache.
	Image = wire.Image
	// PrePull is an image that the server makes ready when it starts.
	PrePull = wire.PrePull
)

// Stats says what the server is busy with.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return get[Stats](ctx, c, path("stats"), nil)
}

// Version says what the server is. It needs no key.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, "/version", nil)
}

// Ready returns nil when the server can make sandboxes. It needs no key.
//
// Unavailable: a part of it cannot work; the text says which.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/readyz"})
}

// Pools tells how the pools are doing.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	return items[Pool](ctx, c, path("pools"))
}

// Providers tells which places make sandboxes.
func (c *Client) Providers(ctx context.Context) ([]Provider, error) {
	return items[Provider](ctx, c, path("providers"))
}

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
func (c *Client) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	return pages[Event](ctx, c, path("events"), f.query(), f.Limit)
}

// VerifyEvents checks that nobody has changed the audit trail.
func (c *Client) VerifyEvents(ctx context.Context) (Verdict, error) {
	return get[Verdict](ctx, c, path("events", "verify"), nil)
}

// Queue lists what is to be done later, or, with dead, what failed for good.
func (c *Client) Queue(ctx context.Context, dead bool) ([]Message, error) {
	query := url.Values{}
	if dead {
		query.Set("state", "dead")
	}
	return pages[Message](ctx, c, path("queue"), query, 0)
}

// RetryMessage has something that failed for good tried again. NotFound, Conflict.
func (c *Client) RetryMessage(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodPost, path: path("queue", id, "retry")})
}

// DropMessage forgets something that failed for good. NotFound.
func (c *Client) DropMessage(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path("queue", id)})
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) ([]Key, error) {
	return pages[Key](ctx, c, path("keys"), url.Values{}, 0)
}

// CreateKey makes an API key for owner's sandboxes; a ttl of zero means for ever. With
// admin it reaches everything.
func (c *Client) CreateKey(ctx context.Context, owner, name string, ttl time.Duration, admin bool) (MadeKey, error) {
	var k MadeKey
	err := c.do(ctx, call{
		method: http.MethodPost, path: path("keys"), out: &k,
		in: wire.NewKey{Name: name, Owner: owner, Admin: admin, TTL: ttl.Seconds()},
	})
	return k, err
}

// DeleteKey takes an API key back. NotFound.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path("keys", id)})
}

// SSHKeys lists the public keys for SSH of an owner; "" is the caller, and others are for
// administrators.
func (c *Client) SSHKeys(ctx context.Context, owner string) ([]SSHKey, error) {
	page, err := get[wire.Page[SSHKey]](ctx, c, path("ssh-keys"), ofOwner(owner))
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
func (c *Client) AddSSHKey(ctx context.Context, owner, name, publicKey string) (SSHKey, error) {
	var k SSHKey
	err := c.do(ctx, call{
		method: http.MethodPost, path: path("ssh-keys"), out: &k, in: wire.NewSSHKey{PublicKey: publicKey, Name: name, Owner: owner},
	})
	return k, err
}

// RemoveSSHKey removes a public key of an owner, as in SSHKeys. NotFound.
func (c *Client) RemoveSSHKey(ctx context.Context, owner, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path("ssh-keys", id), query: ofOwner(owner)})
}

// OpenSSH returns a token for one SSH connection to a sandbox, which is good for a ttl; zero
// is a minute. NotFound. Unsupported: the server does not listen for SSH.
func (c *Client) OpenSSH(ctx context.Context, id sandpit.ID, ttl time.Duration) (SSHToken, error) {
	var t SSHToken
	err := c.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(id), "ssh"), out: &t, in: wire.SSHAccess{TTL: ttl.Seconds()},
	})
	return t, err
}

// Images lists the images for a provider's sandboxes; "" is the server's usual one.
// Those of docker are its engine's, the others the server's cache.
func (c *Client) Images(ctx context.Context, provider string) ([]Image, error) {
	page, err := get[wire.Page[Image]](ctx, c, path("images"), ofProvider(provider))
	return page.Items, err
}

func ofProvider(name string) url.Values {
	if name == "" {
		return nil
	}
	return url.Values{"provider": {name}}
}

// PrePulls lists the images that the server makes ready when it starts.
func (c *Client) PrePulls(ctx context.Context) ([]PrePull, error) {
	return items[PrePull](ctx, c, path("images", "pre-pull"))
}

// RemoveImage removes an image, by ID or name, from the server's cache. NotFound,
// Conflict: in use. Unsupported: the images of that provider are not the server's.
func (c *Client) RemoveImage(ctx context.Context, provider, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path("images", id), query: ofProvider(provider)})
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
