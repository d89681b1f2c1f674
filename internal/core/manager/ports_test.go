package manager_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
)

// visit asks at an address of the machine.
func visit(address string) error {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	res, err := c.Get("http://" + address) //nolint:noctx // it has a limit
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && string(text) != "inside" {
		err = fmt.Errorf("%q", text)
	}
	return err
}

// TestPublishedPorts has ports open from the making of a sandbox to its end, also of one
// that is claimed, and again after a restart.
func TestPublishedPorts(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") }))
	t.Cleanup(server.Close)
	_, text, _ := net.SplitHostPort(server.Listener.Addr().String())
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for address, pooled := range map[string]bool{"127.7.3.1": false, "127.7.3.2": true} { // no other test takes a port there
		t.Run(fmt.Sprintf("pool %t", pooled), func(t *testing.T) {
			t.Parallel()
			p := publish.New(nil)
			o := manager.Options{Publisher: p}
			if pooled {
				o.Pools = []manager.Pool{{Size: 1}}
			}
			r := newRig(t, o)
			t.Cleanup(func() { _ = p.Close() })
			if pooled {
				eventually(t, "one is ready", func() bool { return r.Pools().List()[0].Ready == 1 })
			}
			ask := manager.CreateRequest{Key: "same", Spec: sandpit.Spec{Ports: []sandpit.Port{{Port: port, HostIP: address}}}}
			s, err := r.Create(t.Context(), ask)
			if err != nil {
				t.Fatal(err)
			}
			at := s.Spec.Ports[0]
			if err := visit(at.Address()); err != nil || at.HostIP != address {
				t.Errorf("%+v: %v", at, err)
			}
			again, err := r.Create(t.Context(), ask)
			if err != nil || again.ID != s.ID {
				t.Errorf("the same request: %s, %v, want %s", again.ID, err, s.ID)
			}
			_, err = r.Create(t.Context(), manager.CreateRequest{Spec: sandpit.Spec{Ports: []sandpit.Port{at}}})
			if !errors.Is(err, sandpit.Conflict) || sandpit.HintOf(err) == "" {
				t.Errorf("a port that is taken: %v", err)
			}
			r.close(t)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			p = publish.New(nil)
			r.o.Publisher = p
			r.open(t)
			if err := visit(at.Address()); err != nil {
				t.Errorf("after a restart: %v", err)
			}
			if err := r.Delete(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			if err := visit(at.Address()); err == nil {
				t.Error("the port of a deleted sandbox is open")
			}
		})
	}
}

// TestPortsUnpublished has a manager without a publisher refuse, and leave nothing.
func TestPortsUnpublished(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{KeepDeleted: time.Millisecond})
	_, err := r.Create(t.Context(), manager.CreateRequest{Spec: sandpit.Spec{Ports: []sandpit.Port{{Port: 80}}}})
	if !errors.Is(err, sandpit.Unsupported) {
		t.Errorf("%v", err)
	}
	r.wantNothing(t)
	if _, err := r.Create(t.Context(), manager.CreateRequest{Spec: sandpit.Spec{Ports: []sandpit.Port{{Port: -1}}}}); !errors.Is(err, sandpit.Invalid) {
		t.Errorf("%v", err)
	}
}
