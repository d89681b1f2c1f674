package applet

import (
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestClaim has two connections use a session by turns.
func TestClaim(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root makes sessions")
	}
	book, err := openSessions(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer book.unlock()
	ask := func(action SessionsAction, claim string, lease float64) sandpit.Code {
		t.Helper()
		return sandpit.CodeOf(book.claimSession(SessionsRequest{Action: action, ID: "s", Claim: claim, Lease: lease}))
	}
	for i, step := range []struct {
		action SessionsAction
		claim  string
		lease  float64
		want   sandpit.Code
	}{
		{SessionMake, "a", 60, ""},
		{SessionFind, "b", 60, sandpit.Conflict}, // it is used
		{SessionRenew, "b", 60, sandpit.Conflict},
		{SessionEnd, "b", 60, sandpit.Conflict},
		{SessionRemove, "b", 60, sandpit.Conflict},
		{SessionRenew, "a", 60, ""},
		{SessionEnd, "a", 0, ""},
		{SessionFind, "b", 0, ""},                 // it was given up
		{SessionRenew, "a", 60, sandpit.Conflict}, // also when that claim has run out: programs are b's now
		{SessionFind, "a", 60, ""},                // b's claim has run out
		{SessionEnd, "b", 60, sandpit.Conflict},
		{SessionFind, "", 0, ""}, // a caller that claims nothing
	} {
		if got := ask(step.action, step.claim, step.lease); got != step.want {
			t.Fatalf("step %d, %s by %q: %q, want %q", i, step.action, step.claim, got, step.want)
		}
	}
}
