package native_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestTokens lists and revokes tokens, each owner's for itself.
func TestTokens(t *testing.T) {
	t.Parallel()
	var tokens *token.Tokens
	r := newRig(t, func(o *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		var err error
		if tokens, err = token.Open(t.Context(), token.Options{Store: o.Store, Keys: o.Keys, Dir: t.TempDir()}); err != nil {
			t.Fatal(err)
		}
		o.Tokens = tokens
	})
	mine, others := r.make(t, r.ann, `{}`), r.make(t, r.bob, `{}`)
	issue := func(id sandpit.ID, owner string) {
		t.Helper()
		if _, err := tokens.Issue(t.Context(), token.Preview(id, 80, 0), token.Holder{Owner: owner}, time.Now().Add(time.Hour), "for "+owner); err != nil {
			t.Fatal(err)
		}
	}
	issue(mine.ID, "ann")
	issue(mine.ID, "root")
	issue(others.ID, "bob")
	list := func(key, query string, want int) []wire.Token {
		t.Helper()
		var page wire.Page[wire.Token]
		got := r.want(t, ask{method: "GET", path: "/v1/tokens" + query, key: key}, http.StatusOK, &page)
		if len(page.Items) != want || strings.Contains(string(got.body), token.Prefix) {
			t.Errorf("%q: %s; want %d tokens without their secrets", query, got.body, want)
		}
		return page.Items
	}
	for _, one := range list(r.ann, "", 2) {
		if one.Owner != "ann" || one.Sandbox != mine.ID || one.Port != 80 || one.Kind != "preview" || one.ExpiresAt.IsZero() {
			t.Errorf("%+v", one)
		}
		if one.CreatedBy == "root" || one.CreatedBy == "" && one.Note != "for root" {
			t.Errorf("its client: %+v", one)
		}
	}
	list(r.bob, "?sandbox="+string(mine.ID), 0)
	theirs := list(r.bob, "", 1)[0]
	for _, one := range list(r.admin, "", 3) {
		if one.CreatedBy == "" {
			t.Errorf("an administrator does not see the client of %+v", one)
		}
	}
	list(r.admin, "?owner=bob", 1)
	r.fails(t, ask{method: "GET", path: "/v1/tokens?owner=bob", key: r.ann}, http.StatusForbidden, sandpit.PermissionDenied, "administrators")

	foreign := r.fails(t, ask{method: "DELETE", path: "/v1/tokens/" + theirs.ID, key: r.ann}, http.StatusNotFound, sandpit.NotFound, "not found")
	missing := r.fails(t, ask{method: "DELETE", path: "/v1/tokens/" + strings.Repeat("0", 20), key: r.ann}, http.StatusNotFound, sandpit.NotFound, "not found")
	if strings.ReplaceAll(foreign.Detail, theirs.ID, "X") != strings.ReplaceAll(missing.Detail, strings.Repeat("0", 20), "X") {
		t.Errorf("a foreign token: %q, an unknown one: %q", foreign.Detail, missing.Detail)
	}
	r.fails(t, ask{method: "POST", path: "/v1/sandboxes/" + string(others.ID) + "/tokens/revoke", key: r.ann}, http.StatusNotFound, sandpit.NotFound, "not found")
	list(r.bob, "", 1)
	r.want(t, ask{method: "DELETE", path: "/v1/tokens/" + theirs.ID, key: r.admin}, http.StatusNoContent, nil)
	list(r.bob, "", 0)
	r.want(t, ask{method: "POST", path: "/v1/sandboxes/" + string(mine.ID) + "/tokens/revoke", key: r.ann}, http.StatusNoContent, nil)
	list(r.admin, "", 0)
	if epoch := tokens.Epoch(mine.ID); epoch != 1 {
		t.Errorf("epoch %d", epoch)
	}
	var events wire.Page[wire.Event]
	for end := time.Now().Add(long); len(events.Items) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // they are written later
		r.want(t, ask{method: "GET", path: "/v1/events?action=revoke+all+tokens", key: r.ann}, http.StatusOK, &events)
	}
	if len(events.Items) != 1 || events.Items[0].Sandbox != mine.ID || events.Items[0].Actor != "ann" {
		t.Errorf("events: %+v", events.Items)
	}
}

// TestNoTokens has a server without tokens say so.
func TestNoTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	id := r.make(t, r.ann, `{}`).ID
	for path, method := range map[string]string{"/v1/tokens": "GET", "/v1/tokens/x": "DELETE", "/v1/sandboxes/" + string(id) + "/tokens/revoke": "POST"} {
		r.fails(t, ask{method: method, path: path, key: r.ann}, http.StatusUnprocessableEntity, sandpit.Unsupported, "no tokens")
	}
}
