package workspace

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestAllowedCode has a sandbox report every kind of code. None of its own may end the sandbox
// or count as a credential of the caller.
func TestAllowedCode(t *testing.T) {
	t.Parallel()
	for code, want := range map[sandpit.Code]sandpit.Code{
		sandpit.NotFound: sandpit.NotFound, sandpit.Timeout: sandpit.Timeout, sandpit.Gone: sandpit.Internal,
		sandpit.Unauthenticated: sandpit.Internal, sandpit.Canceled: sandpit.Internal, "": sandpit.Internal, "own": sandpit.Internal,
	} {
		if got := allowedCode(code); got != want {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
}
