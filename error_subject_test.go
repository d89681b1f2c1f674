package sandpit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func TestSubject(t *testing.T) {
	t.Parallel()
	err := sandpit.WithSubject(sandpit.Errorf(sandpit.Conflict, "it runs"), sandpit.Subject{Sandbox: "a", Operation: "start"})
	err = sandpit.WithHint(fmt.Errorf("outside: %w", err), "stop it")
	err = sandpit.WithSubject(err, sandpit.Subject{Provider: "gvisor", Sandbox: "b", Operation: "POST /start"})
	if want := (sandpit.Subject{Provider: "gvisor", Sandbox: "a", Operation: "start"}); sandpit.SubjectOf(err) != want {
		t.Errorf("got %+v, want %+v", sandpit.SubjectOf(err), want)
	}
	if sandpit.CodeOf(err) != sandpit.Conflict || sandpit.HintOf(err) != "stop it" || err.Error() != "outside: it runs" {
		t.Errorf("got %s, hint %q: %v", sandpit.CodeOf(err), sandpit.HintOf(err), err)
	}
	if sandpit.WithSubject(nil, sandpit.Subject{Sandbox: "a"}) != nil || sandpit.SubjectOf(errors.New("x")) != (sandpit.Subject{}) {
		t.Error("what is no error concerns something")
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	busy := sandpit.WithHint(sandpit.WithRetry(sandpit.Errorf(sandpit.Exhausted, "busy"), 3*time.Second), "wait")
	for _, tc := range []struct {
		err   error
		want  bool
		after time.Duration
	}{
		{nil, false, 0},
		{errors.New("x"), false, 0},
		{sandpit.Errorf(sandpit.Unavailable, "away"), true, 0},
		{sandpit.Errorf(sandpit.Exhausted, "quota"), false, 0},
		{sandpit.Errorf(sandpit.Timeout, "late"), false, 0},
		{busy, true, 3 * time.Second},
		{fmt.Errorf("outside: %w", busy), true, 3 * time.Second},
	} {
		if got, after := sandpit.Retryable(tc.err), sandpit.RetryAfterOf(tc.err); got != tc.want || after != tc.after {
			t.Errorf("%v: %v after %v, want %v after %v", tc.err, got, after, tc.want, tc.after)
		}
	}
	if sandpit.WithRetry(nil, time.Second) != nil || sandpit.CodeOf(busy) != sandpit.Exhausted {
		t.Error("the code is lost")
	}
}
