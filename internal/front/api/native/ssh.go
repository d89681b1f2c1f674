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

// SSH is how sandboxes are reached by SSH. The zero value means not at all.
type SSH struct {
	Keys   *sshkey.Keys
	Tokens *sshkey.Tokens
	// Where tells where. Unsupported: nowhere.
	Where func() (wire.SSHServer, error)
}

const pathSSHKeys = wire.Prefix + "/ssh-keys"

type sshKeysIn struct {
	Owner string `query:"owner" maxLength:"200" doc:"Whose keys; others than one's own are for administrators. Default: the caller's."`
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
	ID    string `path:"id" maxLength:"200" doc:"The key's ID."`
	Owner string `query:"owner" maxLength:"200" doc:"Whose key; others than one's own are for administrators. Default: the caller's."`
}

type sshAccessIn struct {
	ID   string `path:"id" doc:"The sandbox."`
	Body *wire.SSHAccess
}

type sshTokenOut struct {
	Body wire.SSHToken
}

// ssh registers who may come in by SSH.
func (s *server) ssh() {
	add(s, operation(http.MethodGet, pathSSHKeys, "listSSHKeys", "List public keys for SSH"), s.listSSHKeys)
	op := operation(http.MethodPost, pathSSHKeys, "addSSHKey", "Register a public key for SSH")
	op.Description = "The private half of the key opens all sandboxes of the owner by SSH. The key ends with the API key of this request, unless it is for another owner."
	op.DefaultStatus = http.StatusCreated
	add(s, op, s.addSSHKey)
	op = operation(http.MethodDelete, pathSSHKeys+"/{id}", "deleteSSHKey", "Remove a public key for SSH")
	op.Description = "Closes the connections that the key has opened."
	op.DefaultStatus = http.StatusNoContent
	add(s, op, s.deleteSSHKey)
	op = operation(http.MethodPost, pathSandbox+"/ssh", "openSSH", "Get a one-time token for SSH")
	op.Description = "The token is the password of one connection to this sandbox."
	op.DefaultStatus = http.StatusCreated
	add(s, op, s.openSSH)
}

// sshKeysOf returns the keys of the server, and the owner whose keys are meant.
func (s *server) sshKeysOf(ctx context.Context, action, owner string) (*sshkey.Keys, string, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, "", err
	}
	if owner != "" && owner != p.Owner {
		if err := s.administrator(ctx, action+" of somebody else"); err != nil {
			return nil, "", err
		}
	}
	if s.SSH.Keys == nil {
		return nil, "", errNoSSH
	}
	return s.SSH.Keys, cmp.Or(owner, p.Owner), nil
}

var errNoSSH = sandpit.Errorf(sandpit.Unsupported, "this server has no SSH")

func (s *server) listSSHKeys(ctx context.Context, in *sshKeysIn) (*sshKeysOut, error) {
	keys, owner, err := s.sshKeysOf(ctx, "list SSH keys", in.Owner)
	if err != nil {
		return nil, err
	}
	list, err := keys.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	page := wire.Page[wire.SSHKey]{Items: make([]wire.SSHKey, 0, len(list))}
	for _, k := range list {
		page.Items = append(page.Items, sshKey(k))
	}
	return &sshKeysOut{page}, nil
}

func sshKey(k store.SSHKey) wire.SSHKey {
	return wire.SSHKey{
		ID: k.ID, Owner: k.Owner, Name: k.Name, Type: k.Type, Fingerprint: k.Fingerprint, APIKey: k.APIKey,
		CreatedAt: k.CreatedAt, LastUsedAt: k.LastUsedAt,
	}
}

func (s *server) addSSHKey(ctx context.Context, in *newSSHKeyIn) (*sshKeyOut, error) {
	keys, owner, err := s.sshKeysOf(ctx, "add an SSH key", in.Body.Owner)
	if err != nil {
		return nil, err
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	apiKey := p.KeyID
	if owner != p.Owner {
		apiKey = "" // an administrator's key is not what others depend on
	}
	added, err := keys.Add(ctx, owner, apiKey, in.Body.Name, in.Body.PublicKey)
	args := map[string]string{"owner": owner}
	if err == nil {
		args["key"], args["fingerprint"] = added.ID, added.Fingerprint
	}
	s.tellOf(ctx, "add an SSH key", args, err)
	if err != nil {
		return nil, err
	}
	return &sshKeyOut{sshKey(added)}, nil
}

func (s *server) deleteSSHKey(ctx context.Context, in *sshKeyIn) (*struct{}, error) {
	keys, owner, err := s.sshKeysOf(ctx, "remove an SSH key", in.Owner)
	if err != nil {
		return nil, err
	}
	err = keys.Delete(ctx, owner, in.ID)
	s.tellOf(ctx, "remove an SSH key", map[string]string{"owner": owner, "key": in.ID}, err)
	return nil, err
}

func (s *server) openSSH(ctx context.Context, in *sshAccessIn) (*sshTokenOut, error) {
	box, err := api.Find(ctx, s.Manager, sandpit.ID(in.ID))
	if err != nil {
		return nil, err
	}
	if s.SSH.Where == nil {
		return nil, errNoSSH
	}
	where, err := s.SSH.Where()
	if err != nil {
		return nil, err
	}
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	var asked wire.SSHAccess
	if in.Body != nil {
		asked = *in.Body
	}
	ttl, err := seconds("ttl_seconds", asked.TTL)
	if err != nil {
		return nil, err
	}
	token, expires, err := s.SSH.Tokens.Issue(box.ID, sshkey.Holder{Owner: p.Owner, Key: p.KeyID}, ttl)
	s.Manager.Report(manager.Report{Actor: p.Owner, Action: "open ssh", Sandbox: box.ID, Err: err})
	if err != nil {
		return nil, err
	}
	return &sshTokenOut{wire.SSHToken{SSHServer: where, User: string(box.ID), Token: token, ExpiresAt: expires}}, nil
}
