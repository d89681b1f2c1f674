package daytona_test

import (
	"net/http"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestQuotas gives 400 for what a quota does not permit, and 429 for requests that come too fast.
func TestQuotas(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, manager.Options{MaxSandboxes: 1, MaxVolumes: 1, MaxSnapshots: 1}, nil)
	made := r.made(t, `{}`)
	path := "/sandbox/" + made.ID
	const text = "Maximum number of sandboxes (1) reached"
	r.do(t, r.Ann, http.MethodPost, "/sandbox", `{}`).want(t, http.StatusBadRequest, text)
	r.do(t, r.Ann, http.MethodPost, path+"/fork", `{}`).want(t, http.StatusBadRequest, text)
	r.do(t, r.Ann, http.MethodPost, path+"/stop", ``).want(t, http.StatusOK, made.ID)
	other := r.made(t, `{}`)
	r.do(t, r.Ann, http.MethodPost, path+"/start", ``).want(t, http.StatusBadRequest, text)
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"a"}`).want(t, http.StatusOK, "ready")
	r.do(t, r.Ann, http.MethodPost, "/volumes", `{"name":"b"}`).want(t, http.StatusBadRequest, "EXHAUSTED")
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+other.ID+"/snapshot", `{"name":"a"}`).want(t, http.StatusOK, other.ID)
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+other.ID+"/snapshot", `{"name":"b"}`).want(t, http.StatusBadRequest, "EXHAUSTED")

	fast := newRigOf(t, manager.Options{}, nil, func(o *api.EdgeOptions) { o.Rate, o.Burst = 0.001, 1 })
	fast.do(t, fast.Ann, http.MethodGet, "/sandbox", "").want(t, http.StatusOK, "items")
	g := fast.do(t, fast.Ann, http.MethodGet, "/sandbox", "")
	if g.want(t, http.StatusTooManyRequests, "too many requests"); g.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}
