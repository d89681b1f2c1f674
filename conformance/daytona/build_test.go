package daytona_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
	"github.com/sandpit-dev/sandpit/internal/testing/testtools"
)

// newBuilder starts a server with a key that may build templates from a file of the machine.
func newBuilder(t *testing.T) *server {
	t.Helper()
	i := testserver.Install(t, testserver.Options{})
	return &server{Installation: i, key: i.NewKey(t, "builder", "--admin")}
}

// TestBuilds has the SDK create sandboxes whose images are built first.
func TestBuilds(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	image := testtools.SmallImage(t)
	s := newBuilder(t)
	environ := append(s.clientEnviron(), "IMAGE="+string(image))
	for _, r := range testsdk.Run(t, testsdk.Install(t, "."), environ, scriptTimeout, "build.mjs") {
		t.Run(r.Name, r.Report)
	}
}

// TestKilledCreation kills the server while it builds the image of a sandbox, and at several times
// between the end of the build and the start of the sandbox. The next server must have neither a
// build nor a sandbox that is unfinished, and create the sandbox without a second build.
func TestKilledCreation(t *testing.T) {
	t.Parallel()
	image := testtools.SmallImage(t)
	s := newBuilder(t)
	for i, kill := range []struct {
		state string // of the snapshot
		after time.Duration
	}{{"building", 0}, {"active", 0}, {"active", 100 * time.Millisecond}, {"active", 200 * time.Millisecond}, {"active", 300 * time.Millisecond}} {
		body := fmt.Sprintf(`{"buildInfo":{"dockerfileContent":"FROM %s\nRUN sleep 1; echo %d\n"}}`, image, i)
		ended := s.startCreation(t, body)
		s.awaitSnapshots(t, i, kill.state)
		time.Sleep(kill.after)
		s.End(t, syscall.SIGKILL)
		<-ended
		s.Restart(t)

		builds := s.awaitSnapshots(t, i, "active", "build_failed") // none is left unfinished
		s.awaitBoxes(t)
		if state, text := s.createAndWait(t, body); state != "started" {
			t.Fatalf("killed %v after %s: create again: %s", kill.after, kill.state, text)
		}
		if again := s.awaitSnapshots(t, i, "active"); kill.state == "active" && again != builds {
			t.Errorf("killed %v after %s: built again: %s; before: %s", kill.after, kill.state, again, builds)
		}
		s.Output(t, "rm", "--all", "-f")
		if left := s.awaitBoxes(t); left != 0 {
			t.Errorf("killed %v after %s: %d sandboxes are left", kill.after, kill.state, left)
		}
	}
}

// createAndWait creates a sandbox and waits while its image is being built and it is created. It
// returns its state and description.
func (s *server) createAndWait(t *testing.T, body string) (state, text string) {
	t.Helper()
	status, text := s.send(t, http.MethodPost, "/api/sandbox", body)
	var made struct{ ID, State string }
	for end := time.Now().Add(long); ; time.Sleep(20 * time.Millisecond) {
		if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusOK {
			return "", text
		}
		switch made.State {
		case "pending_build", "building_snapshot", "creating":
		default:
			return made.State, text
		}
		if time.Now().After(end) {
			return made.State, text
		}
		status, text = s.send(t, http.MethodGet, "/api/sandbox/"+made.ID, "")
	}
}

// startCreation sends a request for a sandbox. The channel is closed when the request has ended, in
// whatever way.
func (s *server) startCreation(t *testing.T, body string) <-chan struct{} {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, s.URL+"/api/sandbox", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Close = true
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close() // the server may be killed
		}
	}()
	return ended
}

// awaitSnapshots waits until there are more than n snapshots and the latest is in one of some states.
// It returns the ID of its build.
func (s *server) awaitSnapshots(t *testing.T, n int, states ...string) string {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(5 * time.Millisecond) {
		status, text := s.send(t, http.MethodGet, "/api/snapshots?limit=100", "")
		var list struct {
			Items []struct{ State, Ref, CreatedAt string }
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
			t.Fatalf("list snapshots: status %d: %v: %s", status, err, text)
		}
		latest := struct{ State, Ref, CreatedAt string }{}
		for _, item := range list.Items {
			if item.CreatedAt > latest.CreatedAt {
				latest = item
			}
		}
		if len(list.Items) > n && strings.Contains(" "+strings.Join(states, " ")+" ", " "+latest.State+" ") {
			return latest.Ref
		}
		if time.Now().After(end) {
			t.Fatalf("no snapshot is %v: %s", states, text)
		}
	}
}

// awaitBoxes waits until no sandbox changes its state, and returns how many there are.
func (s *server) awaitBoxes(t *testing.T) int {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(20 * time.Millisecond) {
		status, text := s.send(t, http.MethodGet, "/api/sandbox?limit=200", "")
		var list struct{ Items []struct{ State string } }
		if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
			t.Fatalf("list sandboxes: status %d: %v: %s", status, err, text)
		}
		changing := 0
		for _, item := range list.Items {
			if item.State != "started" {
				changing++
			}
		}
		if changing == 0 {
			return len(list.Items)
		}
		if time.Now().After(end) {
			t.Fatalf("sandboxes are unfinished: %s", text)
		}
	}
}
