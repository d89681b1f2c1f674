package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

type handler func(context.Context, request, []*os.File) (reply, *os.File, error)

// serveControl serves one engine directory with handle until the test ends.
func serveControl(t *testing.T, handle handler) (dir string) {
	t.Helper()
	// Deeper than a socket address may be long.
	dir = filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := &engineDir{path: dir}
	if err := d.bindControl(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(int(d.listen.Fd()), 8); err != nil {
		t.Fatal(err)
	}
	ln, err := net.FileListener(d.listen)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.listen.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.(*net.UnixListener).AcceptUnix()
			if err != nil {
				return
			}
			serveConn(conn, handle)
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return dir
}

func TestCallCarriesErrorsAndFiles(t *testing.T) {
	t.Parallel()
	dir := serveControl(t, func(_ context.Context, req request, files []*os.File) (reply, *os.File, error) {
		if req.Op == opDestroy {
			return reply{}, nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "not now"), "later")
		}
		f, err := os.Open(descriptorPath(files[0], ""))
		return reply{Exit: &sandpit.Exit{Known: true, Code: 3, Reason: "x"}}, f, err
	})
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rep, got, err := callEngine(t.Context(), dir, request{Op: opWait}, f)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	buf := make([]byte, 16)
	n, _ := got.Read(buf)
	if string(buf[:n]) != "content" || rep.Exit.Code != 3 {
		t.Errorf("got %q and %+v", buf[:n], rep.Exit)
	}

	_, _, err = callEngine(t.Context(), dir, request{Op: opDestroy})
	if sandpit.CodeOf(err) != sandpit.Conflict || sandpit.HintOf(err) != "later" || err.Error() != "not now" {
		t.Errorf("got %v, code %q, hint %q", err, sandpit.CodeOf(err), sandpit.HintOf(err))
	}
}

func TestCallThatIsGivenUpReachesTheEngine(t *testing.T) {
	t.Parallel()
	saw := make(chan struct{})
	dir := serveControl(t, func(ctx context.Context, _ request, _ []*os.File) (reply, *os.File, error) {
		<-ctx.Done()
		close(saw)
		return reply{}, nil, ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := callEngine(ctx, dir, request{Op: opWait}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	select {
	case <-saw:
	case <-time.After(5 * time.Second):
		t.Error("the engine never heard of it")
	}
}

// TestCallThatNobodyWaitsFor has an engine that answers faster than a call is given up.
func TestCallThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	dir := serveControl(t, func(context.Context, request, []*os.File) (reply, *os.File, error) {
		return reply{}, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		if _, _, err := callEngine(ctx, dir, request{Op: opWait}); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
	}
}

func TestCallWithoutEngineIsGone(t *testing.T) {
	t.Parallel()
	if _, _, err := callEngine(t.Context(), filepath.Join(t.TempDir(), "none"), request{}); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("no directory: %v", err)
	}
	if _, _, err := callEngine(t.Context(), t.TempDir(), request{}); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("no socket: %v", err)
	}
}

func TestPacketsAreBounded(t *testing.T) {
	t.Parallel()
	dir := serveControl(t, func(context.Context, request, []*os.File) (reply, *os.File, error) {
		return reply{Error: &replyError{Text: strings.Repeat("x", maxPacket)}}, nil, nil
	})
	big := request{Op: operation(strings.Repeat("x", maxPacket))}
	if _, _, err := callEngine(t.Context(), dir, big); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("request: %v", err)
	}
}

// TestReplyBeforeEnd answers and closes at once while the answer is being waited for. The
// machine's kernel says in some of a thousand rounds that there is nothing.
func TestReplyBeforeEnd(t *testing.T) {
	t.Parallel()
	for i := range 20_000 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		near, err := unixConn(os.NewFile(uintptr(fds[0]), "near"))
		if err != nil {
			t.Fatal(err)
		}
		var answering sync.WaitGroup
		answering.Go(func() {
			_, _ = unix.Write(fds[1], []byte(`{"paused":true}`)) // it is looked for below
			_ = unix.Close(fds[1])
		})
		var rep reply
		_, err = readPacket(near, &rep)
		answering.Wait()
		_ = near.Close()
		if err != nil || !rep.Paused {
			t.Fatalf("round %d: %+v, %v", i, rep, err)
		}
	}
}

// FuzzReadPacket feeds what a hostile engine or client may send.
func FuzzReadPacket(f *testing.F) {
	f.Add([]byte(`{"op":"create","id":"x","create":{"mounts":[{"path":"/"}]}}`), 0)
	f.Add([]byte(`{"error":{"code":"gone","text":"x"}}`), 1)
	f.Add([]byte{}, maxFiles)
	f.Add([]byte("null"), 3)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, b := os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
		defer a.Close()
		defer b.Close()
		rights := make([]int, min(max(n, 0), 200))
		for i := range rights {
			rights[i] = fds[0]
		}
		if err := unix.Sendmsg(fds[0], data, unix.UnixRights(rights...), nil, unix.MSG_DONTWAIT); err != nil {
			return
		}
		_ = unix.Shutdown(fds[0], unix.SHUT_WR)
		conn, err := net.FileConn(b)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var req request
		files, _ := readPacket(conn.(*net.UnixConn), &req)
		if len(files) > maxFiles {
			t.Errorf("%d files", len(files))
		}
		closeAll(files)
	})
}
