package survive_test

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// signaling keeps what is written, and says when the first of it comes.
type signaling struct {
	mu    sync.Mutex
	kept  bytes.Buffer
	once  sync.Once
	first chan struct{}
}

func (s *signaling) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.once.Do(func() { close(s.first) })
	return s.kept.Write(p)
}

// TestStartSurvives resets all connections below commands that were started one by one,
// as the command line does it: one continues, and one whose input has not arrived says so.
func TestStartSurvives(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.makeKey()
	p := newProxy(t, w.address)
	c := w.client(p.url())
	t.Cleanup(c.Close)
	box, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	start := func(stdin io.Reader, pause string) (sandpit.Process, *signaling) {
		out := &signaling{first: make(chan struct{})}
		const lines = "30"
		process, err := box.Start(t.Context(), sandpit.Command{
			Args: []string{"sh", "-c", script, "sh", "one", lines, "3", pause}, Stdin: stdin, Stdout: out,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-out.first
		return process, out
	}
	open, typed := io.Pipe() // input that does not end
	defer typed.Close()
	going, out := start(nil, "0.05")
	typing, _ := start(open, "60") // it cannot end before the reset
	p.reset(func() bool { return true })

	wantOut, _ := expected("one", 30)
	for range 2 { // it is remembered
		status, err := going.Wait(t.Context())
		if err != nil || status.Code != 3 || !bytes.Equal(out.kept.Bytes(), wantOut) {
			t.Errorf("%v, %v, %d bytes, want exit status 3 and %d bytes", status, err, out.kept.Len(), len(wantOut))
		}
	}
	_, err = typing.Wait(t.Context())
	if sandpit.CodeOf(err) != sandpit.Unavailable || !strings.Contains(err.Error(), "command "+typing.ID()+" keeps running") {
		t.Errorf("with input: %v", err)
	}
	if err := typing.Signal(t.Context(), sandpit.SIGKILL); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("signal the running command: %v", err)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	w.stop()
}
