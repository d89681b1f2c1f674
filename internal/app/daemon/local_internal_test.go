package daemon

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// A sandbox without a server has its ports published, and they end with it.
func TestLocalPorts(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Provider, cfg.Engine = "gvisor", testengine.Path(t)
	ask := sandpit.Spec{Ports: []sandpit.Port{{Port: 8000, HostIP: "127.7.4.1"}}}
	told := make(chan []sandpit.Port, 1)
	local, err := OpenLocal(t.Context(), cfg, Listeners{Published: func(ports []sandpit.Port) { told <- ports }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = local.Close() }()
	box, err := local.Create(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	ports := <-told
	_, err = local.Create(t.Context(), sandpit.Spec{Ports: ports})
	if !errors.Is(err, sandpit.Conflict) {
		t.Errorf("a port that is taken: %v", err)
	}
	const script = `import socket; s = socket.create_server(("127.0.0.1", 8000)); c = s.accept()[0]; c.sendall(b"hello\n"); c.close()`
	p, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"/usr/bin/python3", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	line := ""
	for end := time.Now().Add(patience); line == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ports[0].Address())
		if err != nil {
			t.Fatal(err)
		}
		line, _ = bufio.NewReader(conn).ReadString('\n') // nothing while no program listens inside
		_ = conn.Close()
	}
	if line != "hello\n" {
		t.Errorf("%q at %s", line, ports[0].Address())
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := local.Close(); err != nil {
		t.Error(err)
	}
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", ports[0].Address()); err == nil {
		t.Error("the port is open after the end")
	}
}
