package preview_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
)

// soon is how long what a right has opened may outlive it.
const soon = 5 * time.Second

// streams are a WebSocket and an endless answer that a client has open.
type streams struct {
	testing.TB

	conn *websocket.Conn
	body io.ReadCloser
}

// newStreams opens both with the headers of pairs, and uses them.
func newStreams(tb testing.TB, c *http.Client, target string, pairs ...string) *streams {
	tb.Helper()
	path, query, _ := strings.Cut(target, "?")
	if query != "" {
		query = "?" + query
	}
	conn, err := dialWS(tb, c, path+"/ws"+query, pairs...)
	if err != nil {
		tb.Fatalf("WebSocket: %v", err)
	}
	if err := conn.Write(tb.Context(), websocket.MessageText, []byte("x")); err != nil {
		tb.Fatal(err)
	}
	if _, _, err := conn.Read(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	res, err := c.Do(request(tb, http.MethodGet, path+"/endless"+query, nil, pairs...))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = res.Body.Close() })
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != "begun\n" {
		tb.Fatalf("the endless answer begins with %q, %v", line, err)
	}
	return &streams{tb, conn, res.Body}
}

// end checks that both are cut off soon.
func (s *streams) end() {
	s.Helper()
	begin := time.Now()
	if _, _, err := s.conn.Read(s.Context()); err == nil {
		s.Error("the WebSocket stays open")
	}
	if _, err := io.ReadAll(s.body); err == nil {
		s.Error("the answer ends as if it were whole")
	}
	if took := time.Since(begin); took > soon {
		s.Errorf("it took %v until they were cut off", took)
	}
}

// endless is a program with a WebSocket and an answer that has no end.
func endless(w http.ResponseWriter, req *http.Request) {
	switch req.URL.Path {
	case "/ws":
		wsEcho(w, req)
	case "/endless":
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	default:
		echo(w, req)
	}
}

// newHolder makes a key of alice's that a test may delete.
func (r *rig) newHolder() store.Key {
	r.Helper()
	key, secret, err := r.apiKeys.Create(r.Context(), api.NewKey{Owner: alice})
	if err != nil {
		r.Fatal(err)
	}
	r.keys[key.ID] = secret
	return key
}

// TestRightsEnd shows that open connections are cut off when the key or token ends that
// opened it, and that nothing opens it again.
func TestRightsEnd(t *testing.T) {
	t.Parallel()
	deleteKey := func(r *rig, key store.Key) error { return r.apiKeys.Delete(r.Context(), key.ID) }
	for name, tc := range map[string]struct {
		open func(r *rig, u string, token string, key store.Key) (target string, pairs []string)
		end  func(r *rig, key store.Key) error
	}{
		"token in the URL, key deleted": {
			func(_ *rig, u, token string, _ store.Key) (string, []string) {
				return u + "?sandpit_token=" + token, nil
			}, deleteKey,
		},
		"token in a header, key deleted": {
			func(_ *rig, u, token string, _ store.Key) (string, []string) {
				return u, []string{"Sandpit-Preview-Token", token}
			}, deleteKey,
		},
		"cookie, key deleted": {
			func(_ *rig, u, token string, _ store.Key) (string, []string) {
				return u, []string{"Cookie", "sandpit_preview=" + token, "Origin", u, "Sec-Fetch-Site", "same-origin"}
			}, deleteKey,
		},
		"API key, deleted": {
			func(r *rig, u, _ string, key store.Key) (string, []string) {
				label, _, _ := strings.Cut(strings.TrimPrefix(u, "http://"), ".")
				port, id, _ := strings.Cut(label, "-")
				return "http://" + r.main, []string{"X-Api-Key", r.keys[key.ID], "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", port}
			}, deleteKey,
		},
		"token revoked": {
			func(_ *rig, u, token string, _ store.Key) (string, []string) {
				return u, []string{"Sandpit-Preview-Token", token}
			},
			func(r *rig, _ store.Key) error {
				list, err := r.tokens.List(r.Context(), store.TokenFilter{})
				for _, one := range list {
					err = r.tokens.Revoke(r.Context(), one.ID)
				}
				return err
			},
		},
		"URLs taken back": {
			func(_ *rig, u, token string, _ store.Key) (string, []string) {
				return u, []string{"Sandpit-Preview-Token", token}
			},
			func(r *rig, _ store.Key) error {
				list, err := r.tokens.List(r.Context(), store.TokenFilter{})
				if err != nil {
					return err
				}
				return r.gateway.Revoke(r.as(alice), list[0].Sandbox, list[0].Port)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			port := app(t, endless)
			id, key := r.box(), r.newHolder()
			u, err := r.gateway.URL(api.WithPrincipal(t.Context(), api.Principal{Owner: alice, KeyID: key.ID}), id, port, 0, "")
			if err != nil {
				t.Fatal(err)
			}
			c := r.client(false)
			target, pairs := tc.open(r, r.hostURL(id, port), u.Token, key)
			opened := newStreams(t, c, target, pairs...)
			stays := newStreams(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", r.token(id, port))
			if name == "token revoked" || name == "URLs taken back" {
				stays = nil
			}
			if err := tc.end(r, key); err != nil {
				t.Fatal(err)
			}
			opened.end()
			got := get(t, c, target, pairs...)
			if got.status != http.StatusUnauthorized {
				t.Errorf("opened again: %d, %s", got.status, got.body)
			}
			if stays == nil {
				return
			}
			if err := stays.conn.Write(t.Context(), websocket.MessageText, []byte("y")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := stays.conn.Read(t.Context()); err != nil {
				t.Errorf("what another key has opened: %v", err)
			}
		})
	}
}

// TestTicketRightsEnd shows that a ticket ends with the key that asked for it and with all tokens
// of its sandbox, and that what it was exchanged for is a token like others.
func TestTicketRightsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id, key := r.box(), r.newHolder()
	c := r.client(false)
	ticket := func() string {
		t.Helper()
		u, err := r.gateway.Ticket(api.WithPrincipal(t.Context(), api.Principal{Owner: alice, KeyID: key.ID}), id, port, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return u.URL
	}
	revoked := ticket()
	cookie := get(t, c, ticket(), "Sec-Fetch-Mode", "navigate").cookieOf(t)
	with := []string{"Cookie", cookie.Name + "=" + cookie.Value, "Sec-Fetch-Site", "same-origin"}
	get(t, c, r.hostURL(id, port), with...).want(t, http.StatusOK, "")
	list, err := r.tokens.List(t.Context(), store.TokenFilter{Sandbox: id})
	if err != nil || len(list) != 1 || list[0].Key != key.ID || list[0].Note != "opened with a ticket" {
		t.Errorf("tokens: %+v, %v", list, err)
	}
	if err := r.tokens.RevokeSandbox(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	get(t, c, revoked).want(t, http.StatusUnauthorized, "private")
	get(t, c, r.hostURL(id, port), with...).want(t, http.StatusUnauthorized, "private")
	late := ticket()
	if err := r.apiKeys.Delete(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	get(t, c, late).want(t, http.StatusUnauthorized, "private")
}

// TestE2BRightsEnd shows the same for what E2B's clients have: tokens, and signed URLs.
func TestE2BRightsEnd(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	port := app(t, endless)
	id, key := r.e2bBox("private"), r.newHolder()
	mine := api.WithPrincipal(t.Context(), api.Principal{Owner: alice, KeyID: key.ID})
	guest, traffic, err := r.gateway.AccessTokens(mine, id, true)
	if err != nil {
		t.Fatal(err)
	}
	if again, more, err := r.gateway.AccessTokens(mine, id, true); err != nil || again != guest || more != traffic {
		t.Errorf("asked again: other tokens, %v", err)
	}
	c, at := r.client(false), "http://"+r.main
	signed := signedURL(http.MethodGet, "/none", guest, "")
	get(t, c, at+"/envs", named(id, preview.GuestPort, "X-Access-Token", guest)...).want(t, http.StatusOK, "{")
	get(t, c, at+signed).want(t, http.StatusNotFound, "")
	opened := newStreams(t, c, r.hostURL(id, port), "E2b-Traffic-Access-Token", traffic)
	if err := r.apiKeys.Delete(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	opened.end()
	get(t, c, at+"/envs", named(id, preview.GuestPort, "X-Access-Token", guest)...).want(t, http.StatusUnauthorized, "")
	get(t, c, at+"/envs", "X-Access-Token", guest).want(t, http.StatusUnauthorized, "")
	get(t, c, at+signed).want(t, http.StatusUnauthorized, "invalid signature")
	get(t, c, r.hostURL(id, preview.GuestPort)+signed).want(t, http.StatusUnauthorized, "invalid signature")
	get(t, c, r.hostURL(id, port), "E2b-Traffic-Access-Token", traffic).want(t, http.StatusForbidden, "")
	if other, _ := r.access(id); other == guest {
		t.Error("another key has the same token")
	}

	others := signedURL(http.MethodGet, "/none", r.guestToken(id), "")
	get(t, c, at+others).want(t, http.StatusNotFound, "")
	if err := r.tokens.RevokeSandbox(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	get(t, c, at+others).want(t, http.StatusUnauthorized, "invalid signature")
	get(t, c, at+signedURL(http.MethodGet, "/none", r.guestToken(id), "")).want(t, http.StatusNotFound, "")
}
