package envd_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// TestGuestWithoutJournal uses a guest like E2B's, which has no command ids: no command keeps
// running that a caller could not find.
func TestGuestWithoutJournal(t *testing.T) {
	t.Parallel()
	g := guest.New()
	t.Cleanup(g.Close)
	whole := g.Handler()
	c := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/sandpit.v1.") {
			http.NotFound(w, r)
			return
		}
		r.Header.Del(guest.IDHeader)
		whole.ServeHTTP(idless{w}, r)
	}), token)
	if err := c.Init(t.Context(), envd.InitRequest{User: self()}); err != nil {
		t.Fatal(err)
	}
	want := func(doing string, err error) {
		t.Helper()
		if sandpit.CodeOf(err) != sandpit.Unsupported {
			t.Errorf("%s: %v, want the code %s", doing, err, sandpit.Unsupported)
		}
	}
	_, err := c.Start(t.Context(), sandpit.Command{Args: []string{"sleep", "1000"}, ID: "mine"})
	want("start", err)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := c.ListProcesses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it runs on: %+v", list)
		}
	}
	_, err = c.ListCommands(t.Context())
	want("list", err)
	_, err = c.GetCommand(t.Context(), "mine")
	want("get", err)
	_, err = c.Follow(t.Context(), "mine", sandpit.FollowOptions{})
	want("follow", err)
	want("forget", c.ForgetCommand(t.Context(), "mine"))
	p, err := c.Start(t.Context(), sandpit.Command{Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 0 || p.ID() != "" {
		t.Errorf("without an id: %v, %v, id %q", status, err, p.ID())
	}
}

// idless leaves the id out of an answer.
type idless struct{ http.ResponseWriter }

func (w idless) WriteHeader(status int) {
	w.Header().Del(guest.IDHeader)
	w.ResponseWriter.WriteHeader(status)
}

func (w idless) Write(b []byte) (int, error) {
	w.Header().Del(guest.IDHeader)
	return w.ResponseWriter.Write(b)
}

func (w idless) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush is what the guest's streams look for.
func (w idless) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// TestReaderTooSlow reads what a command with an id puts out only when much of it
// is dropped already: the stream says so, and Follow has the rest.
func TestReaderTooSlow(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	const size = 80 << 20
	hold := make(chan struct{})
	p, err := c.Start(t.Context(), sandpit.Command{
		Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; exit 7", size)}, ID: "fast", Stdout: holding(hold),
	})
	if err != nil {
		t.Fatal(err)
	}
	var info sandpit.CommandInfo
	for deadline := time.Now().Add(2 * time.Minute); !info.Ended; time.Sleep(20 * time.Millisecond) {
		if info, err = c.GetCommand(t.Context(), "fast"); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is held back: %+v", info)
		}
	}
	if info.Status.Code != 7 || info.Stdout.Size != size || info.Stdout.Dropped == 0 {
		t.Errorf("told: %+v", info)
	}
	close(hold)
	if _, err := p.Wait(t.Context()); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("wait: %v, want the code %s", err, sandpit.Exhausted)
	}
	told, err := c.Follow(t.Context(), "fast", sandpit.FollowOptions{From: sandpit.Offsets{Stdout: size - 100}})
	if err != nil || told.Missing.Stdout != 0 || told.Next.Stdout != size {
		t.Errorf("follow: %+v, %v", told, err)
	}
}

// holding takes nothing until it is closed.
type holding chan struct{}

func (h holding) Write(b []byte) (int, error) {
	<-h
	return len(b), nil
}
