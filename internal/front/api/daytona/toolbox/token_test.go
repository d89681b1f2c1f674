package toolbox_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// TestToken opens the sandbox by a token in a header, the query or a cookie, and only the sandbox
// that the token is for.
func TestToken(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	var own sandpit.ID
	requester := alice
	r := newRig(t, toolbox.Options{Admit: func(r *http.Request, id sandpit.ID, secret string) (context.Context, func(), error) {
		if id != own || secret != "secret" {
			return nil, nil, sandpit.Errorf(sandpit.Unauthenticated, "invalid token")
		}
		opened.Add(1)
		return api.WithPrincipal(r.Context(), api.Principal{Owner: requester}), func() { opened.Add(-1) }, nil
	}})
	own = r.id
	other := r.newSandbox(alice)
	for _, tc := range []struct {
		id      sandpit.ID
		query   string
		headers []string
		want    int
	}{
		{own, "", []string{"X-Daytona-Preview-Token", "secret"}, http.StatusOK},
		{own, "?DAYTONA_SANDBOX_AUTH_KEY=secret", nil, http.StatusOK},
		{own, "", []string{"Cookie", "daytona-sandbox-auth-" + string(own) + "=secret"}, http.StatusOK},
		{own, "", nil, http.StatusUnauthorized},
		{own, "?DAYTONA_SANDBOX_AUTH_KEY=wrong", nil, http.StatusUnauthorized},
		{own, "", []string{"Cookie", "daytona-sandbox-auth-" + string(other) + "=secret"}, http.StatusUnauthorized},
		{other, "?DAYTONA_SANDBOX_AUTH_KEY=secret", nil, http.StatusUnauthorized},
	} {
		got := r.doAs("", r.url+toolbox.Path+string(tc.id)+"/process/session"+tc.query, http.MethodGet, "", tc.headers...)
		if got.status != tc.want {
			t.Errorf("%+v: status %d: %s", tc, got.status, got.body)
		}
	}
	requester = "root" // an administrator, whose token opens this sandbox only
	url := r.url + toolbox.Path + string(own) + "/process/session"
	r.doAs("", url, http.MethodGet, "", "X-Daytona-Preview-Token", "secret").want(t, http.StatusOK, nil)
	r.doAs(admin, url, http.MethodGet, "").want(t, http.StatusOK, nil)
	r.doAs(bob, url, http.MethodGet, "").want(t, http.StatusNotFound, nil)
	if n := opened.Load(); n != 0 {
		t.Errorf("%d tokens were not released", n)
	}
}
