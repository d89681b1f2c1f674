package publish_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is how long anything may take on a busy machine.
const long = time.Minute

// inside is a program that answers, when all was said to it, with that and its port.
type inside struct{ dialed atomic.Int64 }

func (p *inside) dial(ctx context.Context, port int) (net.Conn, error) {
	p.dialed.Add(1)
	if port == 9 {
		return nil, sandpit.Errorf(sandpit.Unavailable, "nothing listens there")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		defer l.Close()
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		if err == nil {
			_, _ = conn.Write(append(text, strconv.Itoa(port)...))
		}
	}()
	return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
}

func newPublisher(t *testing.T) *publish.Publisher {
	t.Helper()
	p := publish.New(nil)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// say says something at an address and returns what is answered.
func say(t *testing.T, address, text string) (string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(long))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// TestPublish passes on what comes, to the port that is meant, until it is withdrawn.
func TestPublish(t *testing.T) {
	t.Parallel()
	p, program, id := newPublisher(t), &inside{}, sandpit.NewID()
	asked := []sandpit.Port{{Port: 80}, {Port: 81, HostIP: "127.0.0.2"}, {Port: 9}}
	ports, err := p.Publish(t.Context(), id, asked, program.dial)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"} {
		if got := ports[i]; got.HostIP != want || got.HostPort == 0 || got.Port != asked[i].Port {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	for i, want := range []string{"hello80", "hello81"} {
		if got, err := say(t, ports[i].Address(), "hello"); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if got, err := say(t, ports[2].Address(), "hello"); got != "" {
		t.Errorf("without a listener: %q, %v", got, err)
	}
	again, err := p.Publish(t.Context(), id, asked, program.dial)
	if err != nil || again[0] != ports[0] {
		t.Errorf("again: %+v, %v", again, err)
	}
	p.Withdraw(id)
	p.Withdraw(id)
	if _, err := say(t, ports[0].Address(), "hello"); err == nil {
		t.Error("it is open still")
	}
	// Now it is free, and can be had by name.
	if got, err := p.Publish(t.Context(), sandpit.NewID(), ports[1:2], program.dial); err != nil || got[0] != ports[1] {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRefuse opens nothing when one port of several cannot be had.
func TestRefuse(t *testing.T) {
	t.Parallel()
	p, program := newPublisher(t), &inside{}
	const ip = "127.0.0.3" // where no other test takes a port
	both, err := p.Publish(t.Context(), sandpit.NewID(), []sandpit.Port{{Port: 80, HostIP: ip}}, program.dial)
	if err != nil {
		t.Fatal(err)
	}
	second := sandpit.NewID()
	other, err := p.Publish(t.Context(), second, []sandpit.Port{{Port: 80, HostIP: ip}}, program.dial)
	if err != nil {
		t.Fatal(err)
	}
	p.Withdraw(second)
	taken, free := both[0].HostPort, other[0].HostPort
	for name, tc := range map[string]struct {
		ports []sandpit.Port
		want  sandpit.Code
	}{
		"taken":        {[]sandpit.Port{{Port: 80, HostIP: ip, HostPort: free}, {Port: 81, HostIP: ip, HostPort: taken}}, sandpit.Conflict},
		"elsewhere":    {[]sandpit.Port{{Port: 80, HostIP: ip, HostPort: free}, {Port: 80, HostIP: "192.0.2.77"}}, sandpit.Invalid},
		"no address":   {[]sandpit.Port{{Port: 80, HostIP: ip, HostPort: free}, {Port: 80, HostIP: "localhost"}}, sandpit.Invalid},
		"no port":      {[]sandpit.Port{{Port: 0}}, sandpit.Invalid},
		"large":        {[]sandpit.Port{{Port: 80, HostPort: 65536}}, sandpit.Invalid},
		"twice":        {[]sandpit.Port{{Port: 80, HostIP: ip, HostPort: free}, {Port: 81, HostIP: ip, HostPort: free}}, sandpit.Invalid},
		"a great many": {make([]sandpit.Port, 65), sandpit.Invalid},
	} {
		_, err := p.Publish(t.Context(), sandpit.NewID(), tc.ports, program.dial)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if tc.want == sandpit.Conflict && sandpit.HintOf(err) == "" {
			t.Errorf("%s: no remedy", name)
		}
	}
	if _, err := p.Publish(t.Context(), sandpit.NewID(), []sandpit.Port{{Port: 80, HostIP: ip, HostPort: free}}, program.dial); err != nil {
		t.Errorf("what was refused is open: %v", err)
	}
}

// TestClose ends connections that would not end by themselves, and dials that hang.
func TestClose(t *testing.T) {
	t.Parallel()
	p, id := newPublisher(t), sandpit.NewID()
	entered := make(chan struct{})
	ports, err := p.Publish(t.Context(), id, []sandpit.Port{{Port: 80}}, func(ctx context.Context, _ int) (net.Conn, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ports[0].Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-entered
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	_ = conn.SetDeadline(time.Now().Add(long))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection stays open")
	}
	if _, err := p.Publish(t.Context(), id, nil, nil); !errors.Is(err, sandpit.Unavailable) {
		t.Errorf("after its end: %v", err)
	}
}
