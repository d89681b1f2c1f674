package token_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// rig is a store with two sandboxes of ann's and two keys of hers.
type rig struct {
	testing.TB

	dir        string
	store      *store.Store
	clock      *clock.Jumping
	keys       *api.Keys
	tokens     *token.Tokens
	one, other sandpit.ID
	first      token.Holder // with a key
	second     token.Holder // with another one
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	r := &rig{TB: tb, dir: tb.TempDir(), clock: clock.NewJumping()}
	var err error
	if r.store, err = store.Open(tb.Context(), r.dir, store.Options{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.store.Close(); err != nil {
			tb.Error(err)
		}
	})
	r.keys = api.NewKeys(r.store, r.clock, nil)
	r.one, r.other = r.sandbox(), r.sandbox()
	r.first, r.second = r.holder(0), r.holder(0)
	r.open()
	return r
}

// open opens the tokens, as a server that starts does.
func (r *rig) open() {
	r.Helper()
	var err error
	if r.tokens, err = token.Open(r.Context(), token.Options{Store: r.store, Keys: r.keys, Dir: r.dir, Clock: r.clock}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) sandbox() sandpit.ID {
	r.Helper()
	s := sandpit.Sandbox{ID: sandpit.NewID(), State: sandpit.StateRunning, Lease: sandpit.Lease{Owner: "ann"}}
	if _, err := r.store.Sandboxes().InsertSandbox(r.Context(), store.Row{Sandbox: s}); err != nil {
		r.Fatal(err)
	}
	return s.ID
}

// holder makes a key that is good for a time; 0 is for ever.
func (r *rig) holder(ttl time.Duration) token.Holder {
	r.Helper()
	key, _, err := r.keys.Create(r.Context(), api.NewKey{Owner: "ann", TTL: ttl})
	if err != nil {
		r.Fatal(err)
	}
	return token.Holder{Owner: "ann", Key: key.ID}
}

func (r *rig) issue(g token.Grant, h token.Holder) string {
	r.Helper()
	secret, err := r.tokens.Issue(r.Context(), g, h, r.clock.Now().Add(time.Hour), "a note")
	if err != nil {
		r.Fatal(err)
	}
	return secret
}

func (r *rig) access(h token.Holder) (guest, traffic string) {
	r.Helper()
	guest, traffic, err := r.tokens.Access(r.Context(), r.one, h, true)
	if err != nil {
		r.Fatal(err)
	}
	return guest, traffic
}

// admit admits a request that lasts until the test ends.
func (r *rig) admit(secret string, grants ...token.Grant) context.Context {
	r.Helper()
	a, err := r.tokens.Admit(r.Context(), secret, grants...)
	if err != nil {
		r.Fatalf("%+v: %v", grants, err)
	}
	r.Cleanup(a.Release)
	return a.Context()
}

func (r *rig) refuse(secret string, grants ...token.Grant) {
	r.Helper()
	a, err := r.tokens.Admit(r.Context(), secret, grants...)
	if err == nil {
		a.Release()
	}
	if sandpit.CodeOf(err) != sandpit.Unauthenticated {
		r.Errorf("%+v: %v, want unauthenticated", grants, err)
	}
}

// ended checks that what a token has opened is over, and why.
func ended(tb testing.TB, ctx context.Context, name string) { //nolint:revive // the context is what is tested
	tb.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		tb.Fatalf("%s did not end", name)
	}
	if cause := context.Cause(ctx); sandpit.CodeOf(cause) != sandpit.Unauthenticated {
		tb.Errorf("%s: %v", name, cause)
	}
}

// TestGrants opens with each token what it is for, and nothing else.
func TestGrants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	guest, traffic := r.access(r.first)
	all := map[string]token.Grant{
		guest: token.Guest(r.one), traffic: token.Traffic(r.one),
		r.issue(token.Preview(r.one, 8000, 0), r.first):                        token.Preview(r.one, 8000, 0),
		r.issue(token.Preview(r.one, 8000, 1), r.first):                        token.Preview(r.one, 8000, 1),
		r.issue(token.Preview(r.one, 8001, 0), r.first):                        token.Preview(r.one, 8001, 0),
		r.issue(token.Preview(r.other, 8000, 0), token.Holder{Owner: "local"}): token.Preview(r.other, 8000, 0),
	}
	check := func() {
		t.Helper()
		for secret, own := range all {
			for _, g := range all {
				if g == own {
					if ctx := r.admit(secret, token.Guest(r.other), g); ctx.Err() != nil {
						t.Error(context.Cause(ctx))
					}
				} else {
					r.refuse(secret, g)
				}
			}
			for _, bad := range []string{"", "spv_", secret + "A", secret[:len(secret)-1], strings.Replace(secret, "spv_", "spt_", 1), secret[:20] + "\n" + secret[20:]} {
				r.refuse(bad, own)
			}
		}
	}
	check()
	r.open() // as after a restart
	check()
	if again, more := r.access(r.first); again != guest || more != traffic {
		t.Error("a second request gets other tokens")
	}
	if others, more := r.access(r.second); others == guest || more == traffic {
		t.Error("another key gets the same tokens")
	}
	if found := r.tokens.GuestOf(t.Context(), guest); found != r.one {
		t.Errorf("the guest's token is of sandbox %q", found)
	}
	for _, secret := range []string{traffic, "spv_x", ""} {
		if found := r.tokens.GuestOf(t.Context(), secret); found != "" {
			t.Errorf("%q is of the guest of %s", secret, found)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "preview.key")); err != nil {
		t.Fatal(err)
	}
	r.open()
	for secret, own := range all { // a copy of the database alone opens nothing
		r.refuse(secret, own)
	}
}

// TestEnds shows that a token, and what it has opened, ends in each of the ways there are,
// and no other token with it.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig, id string){
		"key deleted": func(r *rig, _ string) {
			if err := r.keys.Delete(r.Context(), r.first.Key); err != nil {
				r.Fatal(err)
			}
		},
		"revoked": func(r *rig, id string) {
			if err := r.tokens.Revoke(r.Context(), id); err != nil {
				r.Fatal(err)
			}
		},
		"port revoked": func(r *rig, _ string) {
			if err := r.tokens.RevokePort(r.Context(), r.one, 8000); err != nil {
				r.Fatal(err)
			}
		},
		"sandbox revoked": func(r *rig, _ string) {
			if err := r.tokens.RevokeSandbox(r.Context(), r.one); err != nil {
				r.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			grant := token.Preview(r.one, 8000, 0)
			secret := r.issue(grant, r.first)
			list, err := r.tokens.List(t.Context(), store.TokenFilter{Sandbox: r.one})
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			stays, staysToo := r.issue(token.Preview(r.other, 8000, 0), r.second), token.Preview(r.other, 8000, 0)
			open, other := r.admit(secret, grant), r.admit(stays, staysToo)
			end(r, list[0].ID)
			ended(t, open, "what it has opened")
			r.refuse(secret, grant)
			if list, err := r.tokens.List(t.Context(), store.TokenFilter{Sandbox: r.one}); err != nil || len(list) != 0 {
				t.Errorf("listed still: %+v, %v", list, err)
			}
			r.admit(stays, staysToo)
			if other.Err() != nil {
				t.Errorf("another token's: %v", context.Cause(other))
			}
			r.open()
			r.refuse(secret, grant)
		})
	}
}

// TestExpiry ends a token at its time, and with a key that expires.
func TestExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	grant := token.Preview(r.one, 8000, 0)
	secret := r.issue(grant, r.first)
	short := r.holder(time.Minute)
	guest, _ := r.access(short)
	r.admit(secret, grant)
	r.admit(guest, token.Guest(r.one))
	r.clock.Jump(2 * time.Minute)
	r.refuse(guest, token.Guest(r.one))
	r.admit(secret, grant)
	if _, _, err := r.tokens.Access(t.Context(), r.one, token.Holder{Owner: "ann", Key: "gone"}, false); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("for a key that does not exist: %v", err)
	}
	r.clock.Jump(time.Hour)
	r.refuse(secret, grant)
	if list, err := r.tokens.List(t.Context(), store.TokenFilter{}); err != nil || len(list) != 0 {
		t.Errorf("listed still: %+v, %v", list, err)
	}
	r.issue(grant, r.first) // which prunes, as it is long ago
	if _, err := r.tokens.Get(t.Context(), idOf(t, secret)); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("an expired record: %v", err)
	}
	if _, err := r.tokens.Get(t.Context(), idOf(t, guest)); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("a record of an expired key: %v", err)
	}
	now, err := r.tokens.Issue(t.Context(), grant, r.first, r.clock.Now().Add(100*time.Millisecond), "")
	if err != nil {
		t.Fatal(err)
	}
	ended(t, r.admit(now, grant), "what an expired token has opened")
}

// idOf returns the ID of the record of a token.
func idOf(tb testing.TB, secret string) string {
	tb.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(secret, token.Prefix))
	if err != nil {
		tb.Fatal(err)
	}
	return hex.EncodeToString(raw[:10])
}

// TestSigned finds the token that something was signed with, of one sandbox and of all.
func TestSigned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	guest, _ := r.access(r.first)
	with := func(secret string) func(string) bool { return func(other string) bool { return other == secret } }
	a, err := r.tokens.AdmitSigned(t.Context(), r.one, with(guest))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	if found := r.tokens.GuestOfSigned(with(guest)); found != r.one {
		t.Errorf("it is of sandbox %q", found)
	}
	if _, err := r.tokens.AdmitSigned(t.Context(), r.other, with(guest)); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("for another sandbox: %v", err)
	}
	if err := r.tokens.RevokeSandbox(t.Context(), r.one); err != nil {
		t.Fatal(err)
	}
	ended(t, a.Context(), "what was signed")
	if found := r.tokens.GuestOfSigned(with(guest)); found != "" {
		t.Errorf("after the epoch it is of sandbox %q", found)
	}
	if epoch := r.tokens.Epoch(r.one); epoch != 1 {
		t.Errorf("epoch %d", epoch)
	}
	renewed, _ := r.access(r.first)
	if renewed == guest {
		t.Error("after the epoch the token is the same")
	}
	again, err := r.tokens.AdmitSigned(t.Context(), r.one, with(renewed))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if err := r.keys.Delete(t.Context(), r.first.Key); err != nil {
		t.Fatal(err)
	}
	ended(t, again.Context(), "what was signed with a key's token")
	if _, err := r.tokens.AdmitSigned(t.Context(), r.one, with(renewed)); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("after the key: %v", err)
	}
	r.clock.Jump(2 * time.Hour)
	r.issue(token.Preview(r.one, 80, 0), r.second) // which prunes
	if found := r.tokens.GuestOfSigned(with(renewed)); found != "" {
		t.Errorf("it is remembered for sandbox %q", found)
	}
}

// TestLegacy honors what an earlier version gave out, for a day.
func TestLegacy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	now := r.clock.Now()
	guest, traffic := legacy(t, r.dir, r.one, 49983), legacy(t, r.dir, r.one, 0)
	r.refuse(guest, token.Guest(r.one))
	db := openRaw(t, r.dir)
	for kind, port := range map[string]int{"guest": 49983, "traffic": 0} {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO tokens VALUES (lower(hex(randomblob(10))), ?, ?, ?, 'ann', 'ann', '', 0, 0, 1, '', ?, ?, NULL)`,
			kind, string(r.one), port, now.UnixMicro(), now.Add(24*time.Hour).UnixMicro()); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	open := r.admit(guest, token.Guest(r.one))
	r.admit(traffic, token.Traffic(r.one))
	r.refuse(guest, token.Traffic(r.one))
	r.refuse(guest, token.Guest(r.other))
	if found := r.tokens.GuestOf(t.Context(), guest); found != r.one {
		t.Errorf("the guest's token is of sandbox %q", found)
	}
	if fresh, _ := r.access(token.Holder{Owner: "local"}); fresh == guest {
		t.Error("a caller without a key gets the old token")
	}
	if err := r.tokens.RevokeSandbox(t.Context(), r.one); err != nil {
		t.Fatal(err)
	}
	ended(t, open, "what an old token has opened")
	r.refuse(guest, token.Guest(r.one))
	r.refuse(traffic, token.Traffic(r.one))
}

// legacy returns the access token of earlier versions for a port.
func legacy(tb testing.TB, dir string, id sandpit.ID, port int) string {
	tb.Helper()
	key, err := os.ReadFile(filepath.Join(dir, "preview.key"))
	if err != nil {
		tb.Fatal(err)
	}
	end := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).Unix()
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "preview %s %05d %020d %020d", id, port, 0, end)
	return "spv_" + base64.RawURLEncoding.EncodeToString(mac.Sum(binary.BigEndian.AppendUint64(nil, uint64(end))))
}

// TestRevokedMeanwhile revokes tokens while they are used and requested: no request is admitted
// after the revocation, or outlasts it.
func TestRevokedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	grant := token.Preview(r.one, 8000, 0)
	for range 50 {
		secret := r.issue(grant, r.first)
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for {
					a, err := r.tokens.Admit(t.Context(), secret, grant)
					if err != nil {
						if !errors.Is(err, sandpit.Unauthenticated) {
							t.Error(err)
						}
						return
					}
					a.Release()
				}
			})
		}
		open := r.admit(secret, grant)
		if err := r.tokens.Revoke(t.Context(), idOf(t, secret)); err != nil {
			t.Fatal(err)
		}
		ended(t, open, "what it has opened")
		r.refuse(secret, grant)
		group.Wait()
	}
}

// TestKeyFile refuses a damaged key, and makes one that only its user reads.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := filepath.Join(r.dir, "preview.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 {
		t.Errorf("key: %v, %v", info, err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := token.Open(t.Context(), token.Options{Store: r.store, Keys: r.keys, Dir: r.dir})
	if err == nil || !strings.Contains(err.Error(), "is damaged: 5 bytes, want 32") {
		t.Errorf("a damaged key: %v", err)
	}
}

// FuzzAdmit looks for a token that was not given out.
func FuzzAdmit(f *testing.F) {
	r := newRig(f)
	grant := token.Preview(r.one, 8000, 3)
	good := r.issue(grant, r.first)
	guest, traffic := r.access(r.first)
	for _, seed := range []string{good, guest, traffic, good[:len(good)-1], good[:20] + "\r\n" + good[20:], good + "=", legacy(f, r.dir, r.one, 49983)} {
		f.Add(seed, 8000, int64(3))
	}
	f.Fuzz(func(t *testing.T, text string, port int, epoch int64) {
		a, err := r.tokens.Admit(t.Context(), text, token.Preview(r.one, port, epoch))
		if err == nil {
			a.Release()
		}
		if want := text == good && port == 8000 && epoch == 3; want != (err == nil) {
			t.Errorf("%q for port %d, epoch %d: %v", text, port, epoch, err)
		}
	})
}
