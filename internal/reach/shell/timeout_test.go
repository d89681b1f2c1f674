package shell_test

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// TestSessionTimeout runs a command that names no time in a session that does.
func TestSessionTimeout(t *testing.T) {
	everyShell(t, shell.Options{Timeout: short}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		begin := time.Now()
		r, err := s.Run(t.Context(), shell.RunRequest{Command: "sleep 1000"})
		wantCode(t, err, sandpit.Timeout)
		if took := time.Since(begin); !r.TimedOut || took > time.Minute {
			t.Errorf("after %s: %+v, %v", took, r, err)
		}
	})
}
