package gvisor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// fullConduit is one that takes nothing more, and its far end.
func fullConduit(t *testing.T) (conduit, far *os.File) {
	t.Helper()
	conduit, far, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conduit.Close() })
	t.Cleanup(func() { _ = far.Close() })
	for {
		err := unix.Sendmsg(int(conduit.Fd()), []byte{0, 1}, nil, nil, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return conduit, far
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestConnectionWaitsForSlowGuest hands a connection to a guest that takes none for a
// while, or never again.
func TestConnectionWaitsForSlowGuest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then func(sb *engineSandbox, far *os.File, cancel func())
		want error
	}{
		"it continues": {func(_ *engineSandbox, far *os.File, _ func()) {
			message := make([]byte, 2)
			for range 100 {
				if _, err := unix.Read(int(far.Fd()), message); err != nil {
					t.Error(err)
				}
			}
		}, nil},
		"it ends":            {func(_ *engineSandbox, far *os.File, _ func()) { _ = far.Close() }, sandpit.Gone},
		"the sandbox ends":   {func(sb *engineSandbox, _ *os.File, _ func()) { close(sb.ended) }, sandpit.Gone},
		"the caller gave up": {func(_ *engineSandbox, _ *os.File, cancel func()) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conduit, far := fullConduit(t)
			sb := &engineSandbox{ended: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sent := make(chan error, 1)
			go func() { sent <- sb.sendToGuest(ctx, conduit, []byte{0, 2}, nil) }()
			select {
			case err := <-sent:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			c.then(sb, far, cancel)
			if err := <-sent; !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestSlowGuestGoesOn has a connection wanted after a guest was too slow to go on when the
// sandbox had been saved: it gets its settings then.
func TestSlowGuestGoesOn(t *testing.T) {
	t.Parallel()
	conduit, far, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer conduit.Close()
	defer far.Close()
	sb := &engineSandbox{ended: make(chan struct{}), conduit: conduit, guestSettings: []byte(`{"token":"kept"}`)}
	told := make(chan string, 1)
	go func() { told <- goOn(far) }()
	conn, err := sb.dialPort(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := <-told; !strings.Contains(got, `"token":"kept"`) {
		t.Errorf("the guest was told %q", got)
	}
	if sb.guestSettings != nil {
		t.Errorf("settings are left: %s", sb.guestSettings)
	}
	port := make([]byte, 2)
	if n, err := unix.Read(int(far.Fd()), port); n != 2 || port[1] != 80 {
		t.Errorf("the connection itself: %v, %v", port[:n], err)
	}
}

// goOn answers as a guest that continues, and returns the request.
func goOn(far *os.File) string {
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(far.Fd()), make([]byte, 2), rights, 0)
	if err != nil {
		return err.Error()
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return "no connection"
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return "no connection"
	}
	conn := os.NewFile(uintptr(fds[0]), "order")
	defer conn.Close()
	head := make([]byte, 5) // the order, and how long what follows is
	if _, err := io.ReadFull(conn, head); err != nil {
		return err.Error()
	}
	text := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(conn, text); err != nil {
		return err.Error()
	}
	if _, err := conn.Write([]byte{'d'}); err != nil {
		return err.Error()
	}
	return string(text)
}

// TestDialWhileDestroyed asks for a connection, and for figures, while another caller destroys
// the sandbox: both hear that it is gone, and why.
func TestDialWhileDestroyed(t *testing.T) {
	t.Parallel()
	sb := newEngineSandbox(sandpit.NewID(), nil)
	calls := map[string]func() error{
		"dial":  func() error { _, err := sb.dialPort(t.Context(), 80); return err },
		"stats": func() error { _, err := sb.measure(); return err },
	}
	sb.mu.Lock() // as destroy has it
	errs := make(map[string]chan error)
	for name, call := range calls {
		errs[name] = make(chan error, 1)
		done := errs[name]
		go func() { done <- call() }()
	}
	time.Sleep(20 * time.Millisecond) // they wait by now, most likely
	sb.setEnded(sandpit.Exit{Reason: "the sandbox was destroyed"})
	sb.mu.Unlock()
	for name, ch := range errs {
		if err := <-ch; sandpit.CodeOf(err) != sandpit.Gone || !strings.Contains(err.Error(), "the sandbox was destroyed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
