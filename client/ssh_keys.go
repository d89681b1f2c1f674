package client

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// SSHKeys manages the public keys that open sandboxes over SSH.
type SSHKeys struct{ client *Client }

// List returns the public keys of an owner; "" is the caller, and others are for administrators.
func (g SSHKeys) List(ctx context.Context, owner string) ([]api.SSHKey, error) {
	page, err := getJSON[wire.Page[api.SSHKey]](ctx, g.client, apiPath("ssh-keys"), newOwnerQuery(owner))
	return page.Items, err
}

// Add registers a public key, the line of a .pub file, for the sandboxes of an owner, as in List.
// Without a name, the key's comment is its name. AlreadyExists.
func (g SSHKeys) Add(ctx context.Context, owner, name, publicKey string) (api.SSHKey, error) {
	var k api.SSHKey
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("ssh-keys"), out: &k, in: wire.NewSSHKey{PublicKey: publicKey, Name: name, Owner: owner},
	})
	return k, err
}

// Remove removes a public key of an owner, as in List. NotFound.
func (g SSHKeys) Remove(ctx context.Context, owner, id string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("ssh-keys", id), query: newOwnerQuery(owner)})
}

// OpenSSH returns a token for one SSH connection to a sandbox, which is valid for a ttl; zero
// means a minute. NotFound. Unsupported: the server does not listen for SSH.
func (g Sandboxes) OpenSSH(ctx context.Context, id sandpit.ID, ttl time.Duration) (api.SSHToken, error) {
	var t api.SSHToken
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(id), "ssh"), out: &t, in: wire.SSHAccess{TTL: ttl.Seconds()},
	})
	return t, err
}
