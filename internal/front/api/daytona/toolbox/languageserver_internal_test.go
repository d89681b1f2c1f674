package toolbox

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestLanguageServerTimeouts gives a server the time of its start for the first request about the
// project, and less for later ones.
func TestLanguageServerTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &languageServer{out: make(chan []byte, maxQueued), ended: make(chan struct{}), pending: make(map[int64]chan serverMessage)}
		request := func(method string, responds bool, want time.Duration) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if responds {
				id := json.RawMessage([]byte{'1' + byte(l.last)})
				go func() {
					time.Sleep(want)
					l.deliver(serverMessage{ID: id})
				}()
			}
			begin := time.Now()
			_, _, err := l.request(ctx, method, nil)
			if took := time.Since(begin); took != want || responds != (err == nil) || !responds && sandpit.CodeOf(err) != sandpit.Timeout {
				t.Errorf("%s: %v after %v, want %v", method, err, took, want)
			}
		}
		request(methodInitialize, true, time.Second)
		request("workspace/symbol", false, serverStartTimeout)
		request("workspace/symbol", true, lspTimeout+time.Second)
		request("workspace/symbol", false, lspTimeout)
	})
}
