package daytona_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// simple is a provider whose sandboxes can be stopped, and have no other ability.
type simple struct{ sandpit.Provider }

// stoppable is an instance of simple.
type stoppable struct {
	sandpit.Instance
	sandpit.Stopper
}

func newStoppable(i sandpit.Instance, err error) (sandpit.Instance, error) {
	if err != nil {
		return nil, err
	}
	s, _ := sandpit.As[sandpit.Stopper](i)
	return stoppable{i, s}, nil
}

func (p simple) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	return newStoppable(p.Provider.Create(ctx, id, spec))
}

func (p simple) Attach(ctx context.Context, handle []byte) (sandpit.Instance, error) {
	return newStoppable(p.Provider.Attach(ctx, handle))
}

// TestAbilities creates sandboxes with a provider that cannot archive them: they are not archived
// unless the client asks for that, which is refused.
func TestAbilities(t *testing.T) {
	t.Parallel()
	world := fake.NewWorld(t.TempDir())
	provider := world.NewProvider()
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &workshop{}
	r := newRigOf(t, manager.Options{Providers: map[string]sandpit.Provider{"fake": simple{provider}}, Builder: w, BuilderProvider: "fake"},
		func(o *daytona.Options) { o.ParseDockerfile = parseLines })
	if b := r.built(t, r.Bob, dockerfile); b.AutoArchiveInterval != 0 { // the ID was given before the first attempt
		t.Errorf("built %+v", b)
	}
	for range 2 { // the server knows it now
		if b := r.made(t, `{}`); b.AutoArchiveInterval != 0 || b.AutoStopInterval != 15 {
			t.Errorf("made %+v", b)
		}
	}
	if n := world.Calls(fake.OpCreate, ""); n != 4 {
		t.Errorf("%d sandboxes were created for three requests, want 4", n)
	}
	r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"autoArchiveInterval":60}`).want(t, http.StatusUnprocessableEntity, "archived")
	r.do(t, r.Ann, http.MethodPost, "/sandbox", `{"autoPauseInterval":60}`).want(t, http.StatusUnprocessableEntity, "suspended")
	path := "/sandbox/" + r.made(t, `{}`).ID
	r.do(t, r.Ann, http.MethodPost, path+"/pause", "").want(t, http.StatusUnprocessableEntity, "cannot do that")
	r.do(t, r.Ann, http.MethodPost, path+"/snapshot", `{"name":"x"}`).want(t, http.StatusUnprocessableEntity, "")
	r.do(t, r.Ann, http.MethodPost, path+"/fork", `{}`).want(t, http.StatusUnprocessableEntity, "")
	r.do(t, r.Ann, http.MethodPost, path+"/stop", "").want(t, http.StatusOK, "stopped")
	r.do(t, r.Ann, http.MethodPost, path+"/archive", "").want(t, http.StatusUnprocessableEntity, "cannot do that")
	r.do(t, r.Ann, http.MethodPost, path+"/start", "").want(t, http.StatusOK, "started")
}
