package envd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestCommandScope starts commands in a scope, and one that cannot be started.
func TestCommandScope(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	type end struct {
		took   time.Duration
		status sandpit.ExitStatus
		err    error
	}
	ends := make(chan end, 1)
	ctx := sandpit.WithCommandScope(t.Context(), sandpit.CommandScope{
		Env:   map[string]string{"TRACEPARENT": "mine", "OTHER": "scope"},
		Ended: func(took time.Duration, status sandpit.ExitStatus, err error) { ends <- end{took, status, err} },
	})
	env := map[string]string{"OTHER": "command"}
	var out strings.Builder
	p, err := c.Start(ctx, sandpit.Command{Args: []string{"sh", "-c", "echo $TRACEPARENT $OTHER; exit 3"}, Env: env, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(ctx)
	if err != nil || out.String() != "mine command\n" {
		t.Errorf("output %q, %v", out.String(), err)
	}
	if got := <-ends; got.err != nil || got.status != status || status.Code != 3 || got.took <= 0 {
		t.Errorf("end: %+v, want %v", got, status)
	}
	if len(env) != 1 {
		t.Errorf("the command's own environment was changed: %v", env)
	}
	if _, err := c.Start(ctx, sandpit.Command{Args: []string{"/no/such/program"}}); err == nil {
		t.Error("start: no error, want one")
	}
	if got := <-ends; sandpit.CodeOf(got.err) != sandpit.NotFound {
		t.Errorf("end: %+v, want NotFound", got)
	}
}
