package daytona_test

import (
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
// build nor a sandbox that is unfinished, create the sandbox that the client knows, and build nothing
// twice.
func TestKilledCreation(t *testing.T) {
	t.Parallel()
	image := testtools.SmallImage(t)
	s := newBuilder(t)
	for i, kill := range []struct {
		state string // of the snapshot
		after time.Duration
	}{{"building", 0}, {"active", 0}, {"active", 100 * time.Millisecond}, {"active", 200 * time.Millisecond}, {"active", 300 * time.Millisecond}} {
		step := "true"
		if kill.state == "building" {
			step = "sleep 1"
		}
		body := fmt.Sprintf(`{"buildInfo":{"dockerfileContent":"FROM %s\nRUN %s; echo %d\n"}}`, image, step, i)
		id := s.startCreation(t, body)
		s.awaitSnapshots(t, i, kill.state)
		time.Sleep(kill.after)
		s.End(t, syscall.SIGKILL)
		s.Restart(t)

		builds := s.awaitSnapshots(t, i, "active", "build_failed") // none is left unfinished
		if state, text := s.awaitCreated(t, id); state != "started" {
			t.Fatalf("killed %v after %s: the sandbox: %s", kill.after, kill.state, text)
		}
		if boxes := s.awaitBoxes(t); boxes != 1 {
			t.Errorf("killed %v after %s: %d sandboxes", kill.after, kill.state, boxes)
		}
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
	return s.awaitCreated(t, s.startCreation(t, body))
}

// awaitCreated waits while the image of a sandbox is being built and it is created. It returns its
// state and description.
func (s *server) awaitCreated(t *testing.T, id string) (state, text string) {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(20 * time.Millisecond) {
		status, text := s.send(t, http.MethodGet, "/api/sandbox/"+id, "")
		var made struct{ State string }
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
	}
}

// startCreation begins to create a sandbox, and returns its ID.
func (s *server) startCreation(t *testing.T, body string) string {
	t.Helper()
	status, text := s.send(t, http.MethodPost, "/api/sandbox", body)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusOK {
		t.Fatalf("create: status %d: %v: %s", status, err, text)
	}
	return made.ID
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
