package daemon

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/front/sshd"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// listenSSH opens the listener of SSH, if there is to be one.
func (s *service) listenSSH(ctx context.Context) (where string, err error) {
	c := s.cfg.SSH
	if c.Listen == config.None {
		return "", nil
	}
	key, err := sshd.HostKey(filepath.Join(s.cfg.StateDir, "ssh"))
	if err != nil {
		return "", err
	}
	server, err := sshd.Listen(ctx, sshd.Options{
		Manager: s.manager, Keys: s.sshKeys, Tokens: s.sshTokens, HostKey: key, Address: c.Listen,
		MaxConnections: c.MaxConnections, MaxConnectionsPerOwner: c.MaxConnectionsPerOwner, IdleTimeout: c.IdleTimeout, Memory: s.memory, Log: s.log,
	})
	if err != nil {
		return "", err
	}
	s.ssh.Store(server)
	return server.Addr().String(), nil
}

// serveSSH serves SSH until ctx ends; if it fails, the whole server ends. The channel
// receives the result.
func (s *service) serveSSH(ctx context.Context, end func()) <-chan error {
	done := make(chan error, 1)
	server := s.ssh.Load()
	if server == nil {
		done <- nil
		return done
	}
	go func() {
		defer end()
		done <- server.Serve(ctx)
	}()
	return done
}

// whereSSH returns the address of the SSH server.
//
// Unsupported: SSH is off.
func (s *service) whereSSH() (wire.SSHServer, error) {
	server := s.ssh.Load()
	if server == nil {
		return wire.SSHServer{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this server does not listen for SSH"),
			"start it with --ssh 127.0.0.1:2222")
	}
	host, port, err := net.SplitHostPort(server.Addr().String())
	if err != nil {
		return wire.SSHServer{}, sandpit.Errorf(sandpit.Internal, "the address of SSH: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return wire.SSHServer{}, sandpit.Errorf(sandpit.Internal, "the address of SSH: %w", err)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "" // clients know by which address they have come
	}
	return wire.SSHServer{Host: host, Port: n, HostKey: server.PublicHostKey()}, nil
}
