package guest

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// TestLateReaderLosesNothing has the time for what a process has left behind be over
// before anybody looks, as happens on a busy machine: all of it is sent nevertheless.
func TestLateReaderLosesNothing(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // the test holds it open
	const text = "the last words"
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	s := newSubscriber(func(e *process.ProcessEvent) error {
		got = append(got, e.GetData().GetStdout()...)
		return nil
	})
	list := newCommands(t.TempDir())
	c := &child{subscribers: map[*subscriber]bool{s: true}, command: list.addCommand("late", 1, &process.StartRequest{})}
	over := make(chan struct{})
	close(over)
	var rest sync.WaitGroup
	o := output{file: r, chunk: 4, stream: 0, event: func(b []byte) *process.ProcessEvent_DataEvent {
		return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: append([]byte(nil), b...)}}
	}}
	c.copyOutput(o, over, &rest)
	if string(got) != text {
		t.Errorf("got %q, want %q", got, text)
	}
	_ = w.Close()
	rest.Wait()
}
