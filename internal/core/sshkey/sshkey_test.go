package sshkey_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// line is the line of a .pub file.
func line(tb testing.TB, public any) string {
	tb.Helper()
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func ed(tb testing.TB) string {
	tb.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return line(tb, public)
}

// noKeys are API keys of which none ends.
type noKeys struct{}

func (noKeys) Attach(ctx context.Context, _ string) (attached context.Context, release func(), err error) {
	return ctx, func() {}, nil
}

// rights are those of sandboxes whose tokens are revoked by raising the epoch.
type rights struct {
	noKeys

	epoch int64
}

func (r *rights) Epoch(sandpit.ID) int64 { return r.epoch }

func (r *rights) Attach(ctx context.Context, _ sandpit.ID, key string) (attached context.Context, release func(), err error) {
	return r.noKeys.Attach(ctx, key)
}

func newKeys(t *testing.T) *sshkey.Keys {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return sshkey.NewKeys(s, noKeys{}, clock.System{}, nil)
}

// TestKeys adds keys, finds them, and removes them, each owner's for itself.
func TestKeys(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	text := ed(t)
	key, _, err := sshkey.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	ann, err := k.Add(t.Context(), "ann", "", "", text+" ann@laptop\x1b[31m\n")
	if err != nil || ann.Name != "ann@laptop[31m" || ann.Fingerprint != ssh.FingerprintSHA256(key) || ann.Type != "ssh-ed25519" {
		t.Fatalf("%+v, %v", ann, err)
	}
	if _, err := k.Add(t.Context(), "ann", "", "again", text); !errors.Is(err, sandpit.AlreadyExists) {
		t.Errorf("again: %v", err)
	}
	bob, err := k.Add(t.Context(), "bob", "", "mine, too", text)
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]string{"ann": ann.ID, "bob": bob.ID} {
		if got, err := k.Of(t.Context(), owner, key); err != nil || got.ID != want {
			t.Errorf("%s: %+v, %v", owner, got, err)
		}
	}
	for _, owner := range []string{"", "eve"} {
		if got, err := k.Of(t.Context(), owner, key); !errors.Is(err, sandpit.NotFound) {
			t.Errorf("%q: %+v, %v", owner, got, err)
		}
	}
	if err := k.Delete(t.Context(), "bob", ann.ID); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("another owner's: %v", err)
	}
	k.Used(t.Context(), ann)
	if list, err := k.List(t.Context(), "ann"); err != nil || len(list) != 1 || list[0].LastUsedAt.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	if err := k.Delete(t.Context(), "ann", ann.ID); err != nil {
		t.Error(err)
	}
	if _, err := k.Of(t.Context(), "ann", key); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("removed: %v", err)
	}
}

// TestTooManyKeys of one owner leave room for others.
func TestTooManyKeys(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for range store.MaxSSHKeys {
		if _, err := k.Add(t.Context(), "ann", "", "", ed(t)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Add(t.Context(), "ann", "", "", ed(t)); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := k.Add(t.Context(), "bob", "", "", ed(t)); err != nil {
		t.Errorf("of another owner: %v", err)
	}
}

// TestParse takes what is a public key, and nothing else.
func TestParse(t *testing.T) {
	t.Parallel()
	good := ed(t)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) // which shall be refused
	if err != nil {
		t.Fatal(err)
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{good, line(t, &strong.PublicKey), line(t, &curve.PublicKey), "\n# mine\n" + good + " a comment\n\n"} {
		if _, _, err := sshkey.Parse(text); err != nil {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"":                           "cannot be read",
		"ssh-ed25519":                "cannot be read",
		"ssh-ed25519 AAAA":           "cannot be read",
		good + "\n" + good:           "more than one",
		`command="x" ` + good:        "options",
		line(t, &weak.PublicKey):     "fewer than 2048 bits",
		strings.Repeat("x", 100_000): "100000 bytes",
		"-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n": "private key",
	} {
		_, _, err := sshkey.Parse(text)
		if !errors.Is(err, sandpit.Invalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || sandpit.HintOf(err) == "" {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// TestCertificates are no keys.
func TestCertificates(t *testing.T) {
	t.Parallel()
	key, _, err := sshkey.Parse(ed(t))
	if err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{Key: key, CertType: ssh.UserCert, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, signer); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sshkey.Parse(string(ssh.MarshalAuthorizedKey(cert))); !errors.Is(err, sandpit.Invalid) {
		t.Errorf("%v", err)
	}
}

// clockAt is a clock that is set by hand.
type clockAt struct {
	clock.System

	now time.Time
}

func (c *clockAt) Now() time.Time { return c.now }

// TestTokens are good once, for one sandbox, for a while.
func TestTokens(t *testing.T) {
	t.Parallel()
	c := &clockAt{now: time.Unix(1e9, 0)}
	r := &rights{}
	tokens := sshkey.NewTokens(c, r)
	ann := sshkey.Holder{Owner: "ann", Key: "k1"}
	one, other := sandpit.NewID(), sandpit.NewID()
	secret, expires, err := tokens.Issue(one, ann, 0)
	if err != nil || !expires.Equal(c.now.Add(sshkey.DefaultTTL)) || len(secret) < 26 {
		t.Fatalf("%d, %v, %v", len(secret), expires, err)
	}
	for _, wrong := range []struct {
		id     sandpit.ID
		secret string
	}{{other, secret}, {one, secret + "x"}, {one, ""}, {one, strings.ToUpper(secret)}} {
		if actor, err := tokens.Take(wrong.id, wrong.secret); !errors.Is(err, sandpit.Unauthenticated) {
			t.Errorf("%v: %+v, %v", wrong, actor, err)
		}
	}
	if actor, err := tokens.Take(one, secret); actor != ann || err != nil {
		t.Errorf("%+v, %v", actor, err)
	}
	if _, err := tokens.Take(one, secret); !errors.Is(err, sandpit.Unauthenticated) {
		t.Errorf("twice: %v", err)
	}
	revoked, _, err := tokens.Issue(one, ann, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.epoch++
	if _, err := tokens.Take(one, revoked); !errors.Is(err, sandpit.Unauthenticated) {
		t.Errorf("after all tokens of the sandbox were revoked: %v", err)
	}
	late, _, err := tokens.Issue(one, ann, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(time.Second)
	if _, err := tokens.Take(one, late); !errors.Is(err, sandpit.Unauthenticated) {
		t.Errorf("too late: %v", err)
	}
	for _, ttl := range []time.Duration{-1, sshkey.MaxTTL + 1} {
		if _, _, err := tokens.Issue(one, ann, ttl); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}

// TestTooManyTokens of one sandbox leave room for others, and for later.
func TestTooManyTokens(t *testing.T) {
	t.Parallel()
	c := &clockAt{now: time.Unix(1e9, 0)}
	tokens := sshkey.NewTokens(c, &rights{})
	ann := sshkey.Holder{Owner: "ann"}
	one := sandpit.NewID()
	issue := func(id sandpit.ID) error { _, _, err := tokens.Issue(id, ann, 0); return err }
	for range 100 {
		if err := issue(one); err != nil {
			t.Fatal(err)
		}
	}
	if err := issue(one); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	for i := range 99 * 100 {
		if err := issue(sandpit.ID(fmt.Sprint("box", i/100))); err != nil {
			t.Fatal(err)
		}
	}
	if err := issue(sandpit.NewID()); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("too many of all: %v", err)
	}
	c.now = c.now.Add(time.Hour)
	if err := issue(one); err != nil {
		t.Errorf("later: %v", err)
	}
}

// FuzzParse parses arbitrary registered texts.
func FuzzParse(f *testing.F) {
	f.Add(ed(f))
	f.Add("ssh-rsa AAAA x\n")
	f.Fuzz(func(t *testing.T, text string) {
		key, _, err := sshkey.Parse(text)
		if err != nil {
			if !errors.Is(err, sandpit.Invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		if again, _, err := sshkey.Parse(string(ssh.MarshalAuthorizedKey(key))); err != nil || ssh.FingerprintSHA256(again) != ssh.FingerprintSHA256(key) {
			t.Errorf("%v", err)
		}
	})
}
