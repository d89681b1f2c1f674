package sandpit_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestErrorCodes wraps errors with codes, joins them and looks at them as callers do.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := fmt.Errorf("create a sandbox: %w", sandpit.Errorf(sandpit.Timeout, "pull %q: %w", "image", cause))
	if err.Error() != `create a sandbox: pull "image": cause` {
		t.Errorf("text: %q", err)
	}
	if !errors.Is(err, sandpit.Timeout) || errors.Is(err, sandpit.NotFound) || !errors.Is(err, cause) || sandpit.CodeOf(err) != sandpit.Timeout {
		t.Errorf("code %q of %v", sandpit.CodeOf(err), err)
	}
	if e, ok := errors.AsType[*sandpit.Error](err); !ok || e.Code != sandpit.Timeout {
		t.Errorf("as an Error: %+v, %t", e, ok)
	}
	if joined := errors.Join(cause, sandpit.Errorf(sandpit.Exhausted, "full")); !errors.Is(joined, sandpit.Exhausted) {
		t.Errorf("joined: %v", joined)
	}
	if sandpit.CodeOf(nil) != "" || sandpit.HintOf(nil) != "" || sandpit.WithHint(nil, "do") != nil {
		t.Error("nil has a code or a hint")
	}
	if hinted := sandpit.WithHint(err, "do this"); sandpit.HintOf(hinted) != "do this" || hinted.Error() != err.Error() || sandpit.CodeOf(hinted) != sandpit.Timeout {
		t.Errorf("with a hint: %v, %q", hinted, sandpit.HintOf(hinted))
	}
}
