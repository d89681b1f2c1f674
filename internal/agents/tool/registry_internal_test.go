package tool

import (
	"context"
	"testing"
	"time"
)

// TestBashTimeout calls the tool bash as a client does: its command has the two minutes of its
// description, and the call has time to stop the command after them.
func TestBashTimeout(t *testing.T) {
	t.Parallel()
	r, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	bash := r.names["bash"]
	var seconds float64
	var left time.Duration
	bash.function = newFunction(func(ctx context.Context, _ *Session, _ bashInput) (Result, error) {
		seconds = commandSeconds(ctx)
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return Result{}, nil
	})
	r.names["bash"] = bash
	if _, err := r.invokeTool(t.Context(), nil, "bash", []byte(`{"command": "true"}`)); err != nil {
		t.Fatal(err)
	}
	if seconds != 120 || left < 2*time.Minute+10*time.Second {
		t.Errorf("the command has %v seconds, the call %v", seconds, left)
	}
}
