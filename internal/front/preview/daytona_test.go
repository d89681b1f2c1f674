package preview_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
)

// daytonaRig is a server on which sandboxes with the label "public" have public ports.
func daytonaRig(tb testing.TB) *rig {
	tb.Helper()
	r := newRig(tb)
	r.gateway.SetRules(func(s sandpit.Sandbox) preview.Rules {
		_, public := s.Spec.Labels["public"]
		return preview.Rules{Public: public}
	}, r.manager.Resume)
	return r
}

// TestBearer opens a private port by its host name with an API key of the sandbox's owner.
func TestBearer(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	c, port := r.client(false), app(t, echo)
	id := r.box()
	url := r.hostURL(id, port) + "/"
	got := get(t, c, url+"x", "Authorization", "Bearer "+r.keys[alice])
	if got.want(t, http.StatusOK, "/x "); strings.Contains(got.body, r.keys[alice]) {
		t.Errorf("the sandbox sees the key: %s", got.body)
	}
	for _, wrong := range []string{"Bearer " + r.keys[bob], "Bearer " + forged(r.keys[alice]), "Basic " + r.keys[alice], "Bearer x"} {
		get(t, c, url, "Authorization", wrong).want(t, http.StatusUnauthorized, "private")
	}
}

// TestDaytonaToken opens a private port by each name under which Daytona's clients send a
// token, and by no other token.
func TestDaytonaToken(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	c, port := r.client(false), app(t, echo)
	id, other := r.box(), r.box()
	u, err := r.gateway.TokenURL(r.as(alice), id, port)
	if err != nil {
		t.Fatal(err)
	}
	if u.URL != r.hostURL(id, port)+"/" || u.Public || u.Token == "" {
		t.Errorf("URL %q, public %v, token %q", u.URL, u.Public, u.Token)
	}
	cookie := "daytona-sandbox-auth-" + string(id)
	const query = "DAYTONA_SANDBOX_AUTH_KEY"
	for _, base := range []string{u.URL, u.PathURL} {
		for name, got := range map[string]reply{
			"header": get(t, c, base+"x?a=1", "X-Daytona-Preview-Token", u.Token),
			"query":  get(t, c, base+"x?a=1&"+query+"="+u.Token),
			"cookie": get(t, c, base+"x?a=1", "Cookie", "own=1; "+cookie+"="+u.Token, "Sec-Fetch-Site", "same-origin"),
		} {
			if got.want(t, http.StatusOK, "/x?a=1 "); strings.Contains(got.body, u.Token) {
				t.Errorf("%s: the sandbox sees the token: %s", name, got.body)
			}
		}
		get(t, c, base).want(t, http.StatusUnauthorized, "private")
		for _, wrong := range []string{"x", forged(u.Token), r.trafficToken(other), r.guestToken(id)} {
			get(t, c, base, "X-Daytona-Preview-Token", wrong).want(t, http.StatusUnauthorized, "private")
			get(t, c, base+"?"+query+"="+wrong).want(t, http.StatusUnauthorized, "private")
			get(t, c, base, "Cookie", cookie+"="+wrong, "Sec-Fetch-Site", "same-origin").want(t, http.StatusUnauthorized, "private")
		}
	}
	visit := get(t, c, u.URL+"page?"+query+"="+u.Token, "Accept", "text/html")
	if at := visit.header.Get("Location"); visit.status != http.StatusSeeOther || at != "/page" {
		t.Fatalf("status %d, location %q", visit.status, at)
	}
	own := visit.cookieOf(t)
	get(t, c, u.URL+"page", "Cookie", own.Name+"="+own.Value, "Sec-Fetch-Site", "same-origin").want(t, http.StatusOK, "/page")
	if _, err := r.gateway.TokenURL(r.as(bob), id, port); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("another owner: %v, want not found", err)
	}
}

// TestDaytonaPublic opens all ports of a public sandbox without a token, except the reserved.
func TestDaytonaPublic(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	c, port := r.client(false), app(t, echo)
	id := r.labelled(map[string]string{"public": ""})
	get(t, c, r.hostURL(id, port)).want(t, http.StatusOK, "GET / ")
	get(t, c, r.pathURL(id, port)+"/").want(t, http.StatusOK, "GET / ")
	get(t, c, r.hostURL(r.box(), port)).want(t, http.StatusUnauthorized, "private")
	for _, reserved := range []int{1, 2280, 22222, 33333, preview.GuestPort} {
		get(t, c, r.hostURL(id, reserved)).want(t, http.StatusUnauthorized, "")
		get(t, c, r.pathURL(id, reserved)+"/").want(t, http.StatusUnauthorized, "")
	}
	if u, err := r.gateway.TokenURL(r.as(alice), id, port); err != nil || !u.Public {
		t.Errorf("public %v, %v", u.Public, err)
	}
	if u, err := r.gateway.TokenURL(r.as(alice), id, 22222); err != nil || u.Public {
		t.Errorf("reserved port: public %v, %v", u.Public, err)
	}
}

// TestDaytonaSigned opens one port by a host name with a token, until the token ends.
func TestDaytonaSigned(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	c, port := r.client(false), app(t, echo)
	id := r.box()
	sign := func() (host, label string) {
		u, err := r.gateway.SignedURL(r.as(alice), id, port, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if want := "http://" + strconv.Itoa(port) + "-" + u.Token + "." + r.domain + ":" + portOf(r.main) + "/"; u.URL != want || len(u.Token) != token.LabelLength {
			t.Errorf("URL %q, want %q", u.URL, want)
		}
		get(t, c, u.PathURL).want(t, http.StatusOK, "GET / ")
		return u.URL, u.Token
	}
	host, label := sign()
	get(t, c, host+"x").want(t, http.StatusOK, "GET /x ")
	get(t, c, strings.Replace(host, label, strings.ToUpper(label), 1)).want(t, http.StatusOK, "GET / ")
	other := app(t, echo)
	for _, wrong := range []string{
		strings.Replace(host, strconv.Itoa(port)+"-", strconv.Itoa(other)+"-", 1),
		strings.Replace(host, label, forged(label), 1), strings.Replace(host, label, strings.Repeat("0", len(label)), 1),
	} {
		get(t, c, wrong).want(t, http.StatusUnauthorized, "private")
	}

	second, secondLabel := sign()
	for _, wrong := range []error{
		r.gateway.ExpireSignedURL(r.as(alice), id, other, label), r.gateway.ExpireSignedURL(r.as(alice), r.box(), port, label),
		r.gateway.ExpireSignedURL(r.as(bob), id, port, label), r.gateway.ExpireSignedURL(r.as(alice), id, port, forged(label)),
	} {
		if sandpit.CodeOf(wrong) != sandpit.NotFound {
			t.Errorf("expire: %v, want not found", wrong)
		}
	}
	if err := r.gateway.ExpireSignedURL(r.as(alice), id, port, label); err != nil {
		t.Fatal(err)
	}
	get(t, c, host).want(t, http.StatusUnauthorized, "private")
	get(t, c, second).want(t, http.StatusOK, "GET / ")
	r.clock.advance(time.Minute)
	get(t, c, second).want(t, http.StatusUnauthorized, "private")
	if err := r.gateway.ExpireSignedURL(r.as(alice), id, port, label); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("expire again: %v, want not found; other %s", err, secondLabel)
	}
	for _, life := range []time.Duration{0, 24*time.Hour + time.Second} {
		if _, err := r.gateway.SignedURL(r.as(alice), id, port, life); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("life %v: %v, want invalid", life, err)
		}
	}
}

// TestDaytonaToolbox admits requests for the toolbox with the token of port 1 only.
func TestDaytonaToolbox(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	id := r.box()
	u, err := r.gateway.TokenURL(r.as(alice), id, 1)
	if err != nil {
		t.Fatal(err)
	}
	req := request(t, http.MethodGet, "http://"+r.main, nil)
	ctx, release, err := r.gateway.AdmitToolbox(req, id, u.Token)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := api.PrincipalOf(ctx); err != nil || p.Owner != alice || p.Admin {
		t.Errorf("principal %+v, %v", p, err)
	}
	if err := r.tokens.RevokeSandbox(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	release()
	again, err := r.gateway.TokenURL(r.as(alice), id, 3000)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{u.Token, again.Token, "", "x"} {
		if _, _, err := r.gateway.AdmitToolbox(req, id, wrong); sandpit.CodeOf(err) != sandpit.Unauthenticated {
			t.Errorf("token %q: %v, want unauthenticated", wrong, err)
		}
	}
}

// TestSigningKey admits requests that were signed with the current signing key of the sandbox.
func TestSigningKey(t *testing.T) {
	t.Parallel()
	r := daytonaRig(t)
	id := r.box()
	key, err := r.gateway.SigningKey(r.as(alice), id, false)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(with string) func(string) bool { return func(secret string) bool { return secret == with } }
	req := request(t, http.MethodGet, "http://"+r.main, nil)
	ctx, release, err := r.gateway.AdmitSignedToolbox(req, id, signed(key))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := api.PrincipalOf(ctx); err != nil || p.Owner != alice || p.Admin {
		t.Errorf("principal %+v, %v", p, err)
	}
	next, err := r.gateway.SigningKey(r.as(alice), id, true)
	if err != nil || next == key || next == "" {
		t.Fatalf("renewed to %q: %v", next, err)
	}
	<-ctx.Done()
	release()
	for where, with := range map[sandpit.ID]string{id: key, r.box(): next} {
		if _, _, err := r.gateway.AdmitSignedToolbox(req, where, signed(with)); sandpit.CodeOf(err) != sandpit.Unauthenticated {
			t.Errorf("sandbox %s: %v, want unauthenticated", where, err)
		}
	}
	_, release, err = r.gateway.AdmitSignedToolbox(req, id, signed(next))
	if err != nil {
		t.Fatal(err)
	}
	release()
	for _, renew := range []bool{false, true} {
		if _, err := r.gateway.SigningKey(r.as(bob), id, renew); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%v, want not found", err)
		}
	}
}
