package data_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// realRig is a server on real sandboxes.
func realRig(t *testing.T) *rig {
	t.Helper()
	return rigOn(t, data.Options{}, map[string]sandpit.Provider{"gvisor": testgvisor.New(t)})
}

// TestRealSandbox goes through a command, files, the guest's protocol, a session and a
// terminal of a real sandbox.
func TestRealSandbox(t *testing.T) {
	t.Parallel()
	r := realRig(t)
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		var result wire.RunResult
		r.do(client, http.MethodPost, id, "/run", strings.NewReader(`{"command":"pwd; cat /proc/version; exit 3"}`)).want(t, http.StatusOK, &result)
		if !strings.HasPrefix(result.Stdout, sandpit.DefaultWorkDir+"\n") || result.ExitCode != 3 || result.ID == "" {
			t.Errorf("%+v", result)
		}
		const size = 32 << 20
		sum := sha256.New()
		content := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{2}), size), sum)
		target := "files" + query("path", "/workspace/large")
		r.do(client, http.MethodPut, id, "/"+target, content).want(t, http.StatusNoContent, nil)
		for _, way := range []string{"/", "/envd/"} {
			got := r.do(client, http.MethodGet, id, way+target, nil)
			if have := sha256.Sum256([]byte(got.body)); got.status != http.StatusOK || !bytes.Equal(have[:], sum.Sum(nil)) {
				t.Errorf("%s: %d, %d bytes", way, got.status, len(got.body))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		guest := envd.New(through{r, client, id}, "")
		var stdout bytes.Buffer
		p, err := guest.Start(ctx, sandpit.Command{Args: []string{"wc", "-c"}, Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: &stdout})
		if err != nil {
			t.Fatal(err)
		}
		if status, err := p.Wait(ctx); status.Code != 0 || err != nil || strings.TrimSpace(stdout.String()) != "1048576" {
			t.Errorf("%v, %v, %q", status, err, stdout.String())
		}
	})
	var session wire.Session
	r.do(r.client, http.MethodPost, id, "/sessions", strings.NewReader(`{}`)).want(t, http.StatusCreated, &session)
	var result wire.SessionResult
	r.do(r.client, http.MethodPost, id, "/sessions/"+session.ID+"/run", strings.NewReader(`{"command":"cd /usr; A=1"}`)).want(t, http.StatusOK, nil)
	r.do(r.client, http.MethodPost, id, "/sessions/"+session.ID+"/run", strings.NewReader(`{"command":"echo $A $PWD"}`)).want(t, http.StatusOK, &result)
	if result.Stdout != "1 /usr\n" {
		t.Errorf("%+v", result)
	}
	s := r.see(id, "/terminal"+query("cols", "91", "rows", "17", "command", "stty size; read x; exit 7"))
	s.until("17 91\r\n")
	s.send(websocket.MessageBinary, "\n")
	if end := s.end(); end.ExitCode == nil || *end.ExitCode != 7 {
		t.Errorf("%+v", end)
	}
	r.idle()
}
