package daytona_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestInProgress refuses changes of a sandbox whose state changes, and finishes the change of a
// client that has disconnected.
func TestInProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{}`)
	path := "/sandbox/" + made.ID
	remove := r.World.Inject(fake.Fault{Op: fake.OpStop, ID: sandpit.ID(made.ID), Delay: 5 * time.Second})
	defer remove()
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/api"+path+"/stop", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.Ann)
	ended := make(chan error, 1)
	go func() {
		res, err := r.Client.Do(req)
		if err == nil {
			err = res.Body.Close()
		}
		ended <- err
	}()
	r.await(t, made.ID, "stopping")
	for _, call := range []string{"/start", "/stop", "/pause", "/archive", "/fork", "/last-activity", "/recover"} {
		r.do(t, r.Ann, http.MethodPost, path+call, "{}").want(t, http.StatusConflict, "Sandbox state change in progress")
	}
	disconnect()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the client that disconnects gets %v", err)
	}
	r.await(t, made.ID, "stopped")
}

// TestNameFreed creates a sandbox with the name of one whose deletion has not ended.
func TestNameFreed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{"name":"again"}`)
	remove := r.World.Inject(fake.Fault{Op: fake.OpDestroy, ID: sandpit.ID(made.ID), Delay: 2 * time.Second})
	defer remove()
	deleted := make(chan got, 1)
	go func() { deleted <- r.do(t, r.Ann, http.MethodDelete, "/sandbox/again", "") }()
	for end := time.Now().Add(long); r.do(t, r.Ann, http.MethodGet, "/sandbox/again", "").Status != http.StatusNotFound; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sandbox stays visible")
		}
	}
	select {
	case g := <-deleted:
		t.Fatalf("the deletion has ended: %s", g.Body)
	default:
	}
	if next := r.made(t, `{"name":"again"}`); next.ID == made.ID || r.is(t, "again").ID != next.ID {
		t.Errorf("the name belongs to %+v", r.is(t, "again"))
	}
	g := <-deleted
	g.want(t, http.StatusOK, `"state":"destroyed"`)
}
