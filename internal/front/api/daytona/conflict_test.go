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
