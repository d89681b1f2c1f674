package sshd_test

import (
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestRightsEnd closes connections when the key or token ends that opened them, and lets
// no client in with it again.
func TestRightsEnd(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, nil)
	box := r.box("ann")
	made, _, err := r.apiKeys.Create(t.Context(), api.NewKey{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	free := ssh.PublicKeys(r.signer(r.key("ann")))
	stays := r.enter(box, free)
	r.apiKey = made.ID
	bound := ssh.PublicKeys(r.signer(r.key("ann")))
	unused, byKey, byToken := r.token(box), r.enter(box, bound), r.enter(box, r.token(box))
	if err := r.apiKeys.Delete(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	closes(t, "with a public key of a deleted API key", byKey)
	closes(t, "with a token of a deleted API key", byToken)
	r.refuses("a public key of a deleted API key", box, bound)
	r.refuses("a token of a deleted API key", box, unused)
	if got := output(t, stays, "echo in"); got != "in\n" {
		t.Errorf("another connection: %q", got)
	}

	r.apiKey = ""
	unused, byToken = r.token(box), r.enter(box, r.token(box))
	if err := r.rights.RevokeSandbox(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	closes(t, "with a token that was revoked", byToken)
	r.refuses("a token that was revoked", box, unused)
	r.enter(box, r.token(box))
	if got := output(t, stays, "echo in"); got != "in\n" {
		t.Errorf("a public key's connection after tokens were revoked: %q", got)
	}

	list, err := r.keys.List(t.Context(), "ann")
	if err != nil || len(list) != 1 {
		t.Fatalf("%d keys, %v; want the one without an API key", len(list), err)
	}
	if err := r.keys.Delete(t.Context(), "ann", list[0].ID); err != nil {
		t.Fatal(err)
	}
	closes(t, "with a public key that was removed", stays)
	r.refuses("a public key that was removed", box, free)
}

// closes checks that a connection ends soon.
func closes(t *testing.T, name string, c *ssh.Client) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // it tells how
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Errorf("a connection %s stays open", name)
	}
}

func (r *rig) refuses(name string, id sandpit.ID, auth ssh.AuthMethod) {
	r.t.Helper()
	c, err := r.dial(id, auth)
	if err == nil {
		_ = c.Close()
		r.t.Errorf("%s lets a client in", name)
	}
}
