package native_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// sshRig is a rig whose server listens for SSH, or says so.
func sshRig(t *testing.T) (*rig, *sshkey.Tokens) {
	t.Helper()
	var tokens *sshkey.Tokens
	r := newRig(t, func(o *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		rights, err := token.Open(t.Context(), token.Options{Store: o.Store, Keys: o.Keys, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		tokens = sshkey.NewTokens(clock.System{}, rights)
		o.SSH = native.SSH{
			Keys: sshkey.NewKeys(o.Store, o.Keys, clock.System{}, nil), Tokens: tokens,
			Where: func() (wire.SSHServer, error) {
				return wire.SSHServer{Host: "127.0.0.1", Port: 2222, HostKey: "ssh-ed25519 AAAA"}, nil
			},
		}
	})
	return r, tokens
}

// newSSHKey is a request for a public key to be registered.
func newSSHKey(t *testing.T, owner string) string {
	t.Helper()
	raw := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), make([]byte, 32)...) // as RFC 8709 has it
	_, _ = rand.Read(raw[len(raw)-32:])                                                       // never fails
	text, err := json.Marshal(wire.NewSSHKey{PublicKey: "ssh-ed25519 " + base64.StdEncoding.EncodeToString(raw) + " laptop", Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSSHKeys checks that owners see their own keys, and administrators all.
func TestSSHKeys(t *testing.T) {
	t.Parallel()
	r, _ := sshRig(t)
	body := newSSHKey(t, "")
	var mine, others wire.SSHKey
	r.want(t, ask{method: "POST", path: "/v1/ssh-keys", key: r.ann, body: body}, http.StatusCreated, &mine)
	if mine.Owner != "ann" || mine.Name != "laptop" || mine.Type != "ssh-ed25519" || !strings.HasPrefix(mine.Fingerprint, "SHA256:") {
		t.Errorf("%+v", mine)
	}
	r.fails(t, ask{method: "POST", path: "/v1/ssh-keys", key: r.ann, body: body}, http.StatusConflict, sandpit.AlreadyExists, "already")
	r.want(t, ask{method: "POST", path: "/v1/ssh-keys", key: r.admin, body: newSSHKey(t, "bob")}, http.StatusCreated, &others)
	for _, a := range []ask{
		{method: "POST", path: "/v1/ssh-keys", body: newSSHKey(t, "bob")},
		{method: "GET", path: "/v1/ssh-keys?owner=bob"},
		{method: "DELETE", path: "/v1/ssh-keys/" + others.ID + "?owner=bob"},
	} {
		a.key = r.ann
		r.fails(t, a, http.StatusForbidden, sandpit.PermissionDenied, "administrators")
	}
	r.fails(t, ask{method: "DELETE", path: "/v1/ssh-keys/" + others.ID, key: r.ann}, http.StatusNotFound, sandpit.NotFound, others.ID)
	r.fails(t, ask{method: "POST", path: "/v1/ssh-keys", key: r.ann, body: `{"public_key":"-----BEGIN OPENSSH PRIVATE KEY-----"}`},
		http.StatusBadRequest, sandpit.Invalid, "private key")
	for key, want := range map[string]string{r.ann: mine.ID, r.bob: others.ID} {
		var page wire.Page[wire.SSHKey]
		r.want(t, ask{method: "GET", path: "/v1/ssh-keys", key: key}, http.StatusOK, &page)
		if len(page.Items) != 1 || page.Items[0].ID != want {
			t.Errorf("%+v, want %s", page.Items, want)
		}
	}
	r.want(t, ask{method: "DELETE", path: "/v1/ssh-keys/" + others.ID + "?owner=bob", key: r.admin}, http.StatusNoContent, nil)
	r.want(t, ask{method: "DELETE", path: "/v1/ssh-keys/" + mine.ID, key: r.ann}, http.StatusNoContent, nil)
}

// TestSSHTokens checks that only principals that may reach the sandbox get tokens.
func TestSSHTokens(t *testing.T) {
	t.Parallel()
	r, tokens := sshRig(t)
	box := r.make(t, r.ann, `{}`)
	path := "/v1/sandboxes/" + string(box.ID) + "/ssh"
	for name, key := range map[string]string{"ann": r.ann, "root": r.admin} {
		var token wire.SSHToken
		r.want(t, ask{method: "POST", path: path, key: key, body: `{"ttl_seconds":600}`}, http.StatusCreated, &token)
		if token.User != string(box.ID) || token.Port != 2222 || token.Host != "127.0.0.1" || token.HostKey == "" || token.ExpiresAt.IsZero() {
			t.Errorf("%+v", token)
		}
		if holder, err := tokens.Take(box.ID, token.Token); holder.Owner != name || err != nil {
			t.Errorf("%+v, %v, want %s", holder, err, name)
		}
		if strings.Contains(r.log.String(), token.Token) {
			t.Error("a token is in the log")
		}
	}
	r.want(t, ask{method: "POST", path: path, key: r.ann}, http.StatusCreated, nil)
	r.fails(t, ask{method: "POST", path: path, key: r.bob}, http.StatusNotFound, sandpit.NotFound, "not found")
	r.fails(t, ask{method: "POST", path: path, key: r.ann, body: `{"ttl_seconds":601}`}, http.StatusBadRequest, sandpit.Invalid, "600")
	without := newRig(t, nil)
	box = without.make(t, without.ann, `{}`)
	without.fails(t, ask{method: "POST", path: "/v1/sandboxes/" + string(box.ID) + "/ssh", key: without.ann}, http.StatusUnprocessableEntity, sandpit.Unsupported, "no SSH")
	without.fails(t, ask{method: "GET", path: "/v1/ssh-keys", key: without.ann}, http.StatusUnprocessableEntity, sandpit.Unsupported, "no SSH")
}
