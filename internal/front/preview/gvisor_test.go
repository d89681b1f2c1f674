package preview_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// TestGuestPort holds the gateway's idea of the guest's port against the guest's.
func TestGuestPort(t *testing.T) {
	t.Parallel()
	if preview.GuestPort != guest.Port {
		t.Errorf("the guest's port is %d, not %d", guest.Port, preview.GuestPort)
	}
}

// realRig is a server with previews of real sandboxes, for whose API programs of this
// machine need no key.
func realRig(tb testing.TB) *rig {
	tb.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testengine.Skip(tb, "no python3: %v", err)
	}
	return rigOn(tb, "localhost", testgvisor.New(tb), true)
}

// appPort is where the program listens in each sandbox.
const appPort = 8000

// realBox makes a sandbox of alice's in which the program listens.
func (r *rig) realBox() sandpit.ID {
	r.Helper()
	script, err := os.ReadFile(filepath.Join("testdata", "app.py"))
	if err != nil {
		r.Fatal(err)
	}
	s, err := r.manager.Create(r.Context(), manager.CreateRequest{Owner: alice})
	if err != nil {
		r.Fatal(err)
	}
	h, err := r.manager.Use(r.Context(), s.ID)
	if err != nil {
		r.Fatal(err)
	}
	defer h.Release()
	process, err := h.Guest().Start(h.Context(), sandpit.Command{Args: []string{"/usr/bin/python3", "-c", string(script), strconv.Itoa(appPort)}})
	if err != nil {
		r.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := process.Wait(r.Context())
		ended <- err
	}()
	r.Cleanup(func() { <-ended })
	c, token := r.client(false), r.token(s.ID, appPort)
	eventually(r.TB, "the program in the sandbox listens", func() bool {
		return get(r.TB, c, r.hostURL(s.ID, appPort), "Sandpit-Preview-Token", token).status == http.StatusOK
	})
	return s.ID
}

// TestRealSandbox sees a program in a real sandbox.
func TestRealSandbox(t *testing.T) {
	t.Parallel()
	r := realRig(t)
	id := r.realBox()
	token := []string{"Sandpit-Preview-Token", r.token(id, appPort)}
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		get(t, c, r.hostURL(id, appPort)+"/", token...).want(t, http.StatusOK, "A program in a sandbox")
		get(t, c, r.pathURL(id, appPort)+"/app.js", token...).want(t, http.StatusOK, "new WebSocket")
		const size = 64 << 20
		req := request(t, http.MethodPost, r.hostURL(id, appPort)+"/", io.LimitReader(rand.NewChaCha8([32]byte{3}), size), token...)
		req.ContentLength = size
		send(t, c, req).want(t, http.StatusOK, strconv.Itoa(size))
		get(t, c, r.hostURL(id, 9)+"/", "Sandpit-Preview-Token", r.token(id, 9)).want(t, http.StatusBadGateway, "nothing listens at port 9")
		// The guest's own protocol never is what anybody sees.
		get(t, c, r.hostURL(id, guest.Port)+"/health", "X-Access-Token", token[1]).want(t, http.StatusUnauthorized, "")
	})
	if err := r.webSockets(id, 3); err != nil {
		t.Error(err)
	}
}

// socketsVariable is how many WebSockets there are at a time.
const socketsVariable = "SANDPIT_TEST_WEBSOCKETS"

// TestManyWebSockets has many people see one program at a time. It takes as many as the
// variable says.
func TestManyWebSockets(t *testing.T) {
	t.Parallel()
	n := 100
	if text := os.Getenv(socketsVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", socketsVariable, err)
		}
	}
	r := realRig(t)
	id := r.realBox()
	begin := time.Now()
	if err := r.webSockets(id, n); err != nil {
		t.Error(err)
	}
	t.Logf("%d WebSockets opened, used at the same time and closed in %v", n, time.Since(begin))
	r.idle()
}

// webSockets opens so many WebSockets, and only when all are there speaks on each.
func (r *rig) webSockets(id sandpit.ID, n int) error {
	r.Helper()
	c, pairs := r.client(false), []string{"Sandpit-Preview-Token", r.token(id, appPort)}
	errs := make([]error, n)
	conns := make([]*websocket.Conn, n)
	each := func(do func(i int) error) {
		var group sync.WaitGroup
		turns := make(chan struct{}, 50)
		for i := range n {
			turns <- struct{}{}
			group.Go(func() {
				defer func() { <-turns }()
				if errs[i] == nil {
					errs[i] = do(i)
				}
			})
		}
		group.Wait()
	}
	each(func(i int) (err error) {
		conns[i], err = dialWS(r.TB, c, r.hostURL(id, appPort)+"/ws", pairs...)
		return err
	})
	if active := r.manager.Stats().ActiveOperations; active < n && errors.Join(errs...) == nil {
		errs[0] = fmt.Errorf("%d uses, want %d", active, n)
	}
	for range 3 {
		each(func(i int) error {
			text := []byte("message of " + strconv.Itoa(i))
			ctx, cancel := context.WithTimeout(r.Context(), long)
			defer cancel()
			if err := conns[i].Write(ctx, websocket.MessageText, text); err != nil {
				return err
			}
			if _, got, err := conns[i].Read(ctx); err != nil || !bytes.Equal(got, text) {
				return fmt.Errorf("%q, %w", got, err)
			}
			return nil
		})
	}
	each(func(i int) error { return conns[i].CloseNow() })
	return errors.Join(errs...)
}

// BenchmarkPreview compares a request through the gateway with one that goes straight to
// the sandbox, one after the other.
func BenchmarkPreview(b *testing.B) {
	r := realRig(b)
	id := r.realBox()
	h, err := r.manager.Use(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Release()
	direct, token := &http.Client{Transport: h.HTTP(appPort)}, r.token(id, appPort)
	for name, tc := range map[string]struct {
		client *http.Client
		target string
	}{"direct": {direct, "http://x/"}, "preview": {r.client(false), r.hostURL(id, appPort)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := get(b, tc.client, tc.target, "Sandpit-Preview-Token", token); !strings.Contains(got.body, "sandbox") {
					b.Fatal(got.body)
				}
			}
		})
	}
}
