package native

import (
	"cmp"
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// SSH gives access to sandboxes by SSH. The zero value is a server without SSH.
type SSH struct {
	Keys   *sshkey.Keys
	Tokens *sshkey.Tokens
	// Where returns the address of the SSH server. Unsupported: the server has no SSH.
	Where func() (wire.SSHServer, error)
}

const pathSSHKeys = wire.Prefix + "/ssh-keys"

type sshKeysIn struct {
	Owner string `query:"owner" maxLength:"200" doc:"The owner of the keys; only administrators may name another owner. Default: the client's own."`
}

type sshKeysOut struct {
	Body wire.Page[wire.SSHKey]
}

type newSSHKeyIn struct {
	Body wire.NewSSHKey
}

type sshKeyOut struct {
	Body wire.SSHKey
}

type sshKeyIn struct {
	ID    string `path:"id" maxLength:"200" doc:"ID of the key."`
	Owner string `query:"owner" maxLength:"200" doc:"The owner of the key; only administrators may name another owner. Default: the client's own."`
}

type sshAccessIn struct {
	ID   string `path:"id" doc:"ID of the sandbox."`
	Body *wire.SSHAccess
}

type sshTokenOut struct {
	Body wire.SSHToken
}

// sshHandlers serve SSH keys and one-time tokens for SSH.
type sshHandlers struct {
	manager *manager.Manager
	ssh     SSH
	access  access
}

// addOperations adds the operations for SSH.
func (h *sshHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathSSHKeys, "listSSHKeys", "List public keys for SSH"), h.listKeys)
	op := newOperation(http.MethodPost, pathSSHKeys, "addSSHKey", "Register a public key for SSH")
	op.Description = "The private key opens all sandboxes of the owner by SSH. The SSH key ends with the API key of this request, unless it is for another owner."
	op.DefaultStatus = http.StatusCreated
	addOperation(r, op, h.addKey)
	op = newOperation(http.MethodDelete, pathSSHKeys+"/{id}", "deleteSSHKey", "Remove a public key for SSH")
	op.Description = "Closes the connections that the key has opened."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, h.deleteKey)
	op = newOperation(http.MethodPost, pathSandbox+"/ssh", "openSSH", "Create a one-time token for SSH")
	op.Description = "The token is the password of one connection to this sandbox."
	op.DefaultStatus = http.StatusCreated
	addOperation(r, op, h.createToken)
}

// keysFor returns the keys of the server and the owner whose keys a request is about.
func (h *sshHandlers) keysFor(ctx context.Context, action, owner string) (*sshkey.Keys, string, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, "", err
	}
	if owner != "" && owner != p.Owner {
		if err := h.access.requireAdmin(ctx, action+" of another owner"); err != nil {
			return nil, "", err
		}
	}
	if h.ssh.Keys == nil {
		return nil, "", errNoSSH
	}
	return h.ssh.Keys, cmp.Or(owner, p.Owner), nil
}

var errNoSSH = sandpit.Errorf(sandpit.Unsupported, "this server has no SSH")

func (h *sshHandlers) listKeys(ctx context.Context, in *sshKeysIn) (*sshKeysOut, error) {
	keys, owner, err := h.keysFor(ctx, "list SSH keys", in.Owner)
	if err != nil {
		return nil, err
	}
	list, err := keys.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	page := wire.Page[wire.SSHKey]{Items: make([]wire.SSHKey, 0, len(list))}
	for _, k := range list {
		page.Items = append(page.Items, toSSHKey(k))
	}
	return &sshKeysOut{page}, nil
}

func toSSHKey(k store.SSHKey) wire.SSHKey {
	return wire.SSHKey{
		ID: k.ID, Owner: k.Owner, Name: k.Name, Type: k.Type, Fingerprint: k.Fingerprint, APIKey: k.APIKey,
		CreatedAt: k.CreatedAt, LastUsedAt: k.LastUsedAt,
	}
}

func (h *sshHandlers) addKey(ctx context.Context, in *newSSHKeyIn) (*sshKeyOut, error) {
	keys, owner, err := h.keysFor(ctx, "add an SSH key", in.Body.Owner)
	if err != nil {
		return nil, err
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	apiKey := p.KeyID
	if owner != p.Owner {
		apiKey = "" // keys of other owners do not depend on an administrator's API key
	}
	added, err := keys.Add(ctx, owner, apiKey, in.Body.Name, in.Body.PublicKey)
	args := map[string]string{"owner": owner}
	if err == nil {
		args["key"], args["fingerprint"] = added.ID, added.Fingerprint
	}
	h.access.reportAction(ctx, "add an SSH key", args, err)
	if err != nil {
		return nil, err
	}
	return &sshKeyOut{toSSHKey(added)}, nil
}

func (h *sshHandlers) deleteKey(ctx context.Context, in *sshKeyIn) (*struct{}, error) {
	keys, owner, err := h.keysFor(ctx, "remove an SSH key", in.Owner)
	if err != nil {
		return nil, err
	}
	err = keys.Delete(ctx, owner, in.ID)
	h.access.reportAction(ctx, "remove an SSH key", map[string]string{"owner": owner, "key": in.ID}, err)
	return nil, err
}

func (h *sshHandlers) createToken(ctx context.Context, in *sshAccessIn) (*sshTokenOut, error) {
	box, err := api.Find(ctx, h.manager, sandpit.ID(in.ID))
	if err != nil {
		return nil, err
	}
	if h.ssh.Where == nil {
		return nil, errNoSSH
	}
	where, err := h.ssh.Where()
	if err != nil {
		return nil, err
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	var access wire.SSHAccess
	if in.Body != nil {
		access = *in.Body
	}
	ttl, err := toDuration("ttl_seconds", access.TTL)
	if err != nil {
		return nil, err
	}
	token, expires, err := h.ssh.Tokens.Issue(box.ID, sshkey.Holder{Owner: p.Owner, Key: p.KeyID}, ttl)
	h.access.report(manager.Report{Actor: p.Owner, Action: "open ssh", Sandbox: box.ID, Err: err})
	if err != nil {
		return nil, err
	}
	return &sshTokenOut{wire.SSHToken{SSHServer: where, User: string(box.ID), Token: token, ExpiresAt: expires}}, nil
}
