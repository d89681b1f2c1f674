package mcpclient

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// mute is a guest that has been stopped by a program inside: it answers nothing.
type mute struct{ sandpit.Processes }

func (mute) Start(ctx context.Context, _ sandpit.Command) (sandpit.Process, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestMuteGuest has calls and the end of a session return although the sandbox answers
// nothing.
func TestMuteGuest(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]Server{
		"program": {Type: Stdio, Command: "x"},
		"url":     {Type: HTTP, URL: "http://127.0.0.1:1/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				servers := New(Options{Guest: mute{}, Config: Config{"mute": server}})
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := servers.Tools(ctx, "mute"); err == nil {
					t.Error("a guest that answers nothing has started a server")
				}
				servers.Close(t.Context())
				if took := time.Since(begin); took > 2*startTimeout {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
