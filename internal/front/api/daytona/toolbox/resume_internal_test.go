package toolbox

import (
	"errors"
	"io"
	"testing"
)

// TestSharedInput gives input to one connection after the other: the next one gets what the previous
// one has read too late, and is not told what a process may have got already.
func TestSharedInput(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		source, to := io.Pipe()
		shared := &sharedInput{source: source, terminal: terminal, turn: make(chan struct{}, 1)}
		write := func(text string) {
			if _, err := io.WriteString(to, text); err != nil {
				t.Error(err)
			}
		}
		read := func(from io.Reader, want string) {
			t.Helper()
			b := make([]byte, 8)
			if n, err := from.Read(b); err != nil || string(b[:n]) != want {
				t.Errorf("read %q, %v; want %q", b[:n], err, want)
			}
		}
		first := shared.connect()
		go write("sent")
		read(first, "sent")
		late := make(chan error)
		go func() {
			_, err := first.Read(make([]byte, 8)) // the previous bytes are sent now
			late <- err
		}()
		for { // until it waits for the source
			first.mu.Lock()
			sent := first.unknown == nil
			first.mu.Unlock()
			if sent && len(shared.turn) == 1 {
				break
			}
		}
		if first.disconnect() {
			t.Error("sent input is reported as lost")
		}
		second := shared.connect()
		write("late")
		if err := <-late; !errors.Is(err, errDisconnected) {
			t.Errorf("a read of an ended connection: %v", err)
		}
		read(second, "late")
		if lost := second.disconnect(); lost == terminal {
			t.Errorf("input that was perhaps not sent: lost is %t, terminal %t", lost, terminal)
		}
		third := shared.connect()
		read(third, "late") // again
		if err := to.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if n, err := third.Read(make([]byte, 8)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %d, %v", n, err)
			}
		}
		if _, err := shared.connect().Read(make([]byte, 8)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection after the end: %v", err)
		}
	}
}
