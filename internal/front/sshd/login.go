package sshd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// maxTries is how many keys and tokens one connection may show.
	maxTries = 6
	// stall is how long a client may not take what is sent to it.
	stall = time.Minute
)

// errLogin is the error of every refused login: an unknown sandbox, another owner's sandbox
// and a wrong key all give the same error.
var errLogin = sandpit.Errorf(sandpit.Unauthenticated, "sandbox not found, or the key or token is not valid for it")

// errSlow is why a log-in ends that takes too long.
var errSlow = sandpit.Errorf(sandpit.Timeout, "it took too long to log in")

// login is a connection during the handshake. Its fields are set by the callbacks of the
// handshake, of which one runs at a time.
type login struct {
	server *Server
	from   netip.Addr
	ctx    context.Context //nolint:containedctx // of the connection, which callbacks are not given
	end    context.CancelCauseFunc
	banner func(string) error
	// visitor is how the connection is counted.
	visitor *visitor

	tried   bool   // to log in
	user    string // the user name of the client
	sandbox *manager.Handle
	release func() // of the rights of the login, or nil
	actor   string
	with    string // what they have shown
	refusal error  // why an authenticated client cannot use the sandbox
}

// newLogin returns what becomes a connection when it is performed. The caller must close
// it.
func (s *Server) newLogin(ctx context.Context, from netip.Addr) *login {
	l := &login{server: s, from: from, banner: func(string) error { return nil }}
	l.ctx, l.end = context.WithCancelCause(ctx)
	l.visitor = &visitor{from: from, cut: l.end}
	return l
}

// performHandshake performs the handshake. Without an error, the sandbox is in use.
func (l *login) performHandshake(raw net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	stop := context.AfterFunc(l.ctx, func() { _ = raw.SetReadDeadline(time.Unix(1, 0)) }) // it ends the handshake
	defer stop()
	slow := time.AfterFunc(l.server.o.LoginTime, func() { l.end(errSlow) })
	defer slow.Stop()
	conn, channels, requests, err := ssh.NewServerConn(patient{raw}, l.serverConfig())
	if err == nil {
		err = l.refusal
	}
	if err == nil && (!slow.Stop() || !stop()) {
		err = context.Cause(l.ctx)
	}
	return conn, channels, requests, err
}

// releaseSandbox gives the sandbox back.
func (l *login) releaseSandbox() {
	l.end(nil)
	l.server.crowd.removeVisitor(l.visitor)
	if l.sandbox != nil {
		l.sandbox.Release()
	}
	if l.release != nil {
		l.release()
	}
}

func (l *login) serverConfig() *ssh.ServerConfig {
	c := &ssh.ServerConfig{
		MaxAuthTries:        maxTries,
		ServerVersion:       "SSH-2.0-sandpit",
		PreAuthConnCallback: func(c ssh.ServerPreAuthConn) { l.banner = c.SendAuthBanner },
		PublicKeyCallback:   l.checkOfferedKey,
		// What needs to be proved is looked at again, when it has been.
		VerifiedPublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions, _ string) (*ssh.Permissions, error) {
			return l.acceptKey(meta, key)
		},
		PasswordCallback: l.acceptToken,
	}
	c.AddHostKey(l.server.o.HostKey)
	return c
}

// checkOfferedKey reports whether a key would be accepted. The client has not proved yet that
// it has the private key.
func (l *login) checkOfferedKey(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	l.tried, l.user = true, meta.User()
	if _, _, err := l.findSandbox(key); err != nil {
		l.delayRefusal()
		return nil, err
	}
	return &ssh.Permissions{}, nil
}

// delayRefusal makes a refusal slow for an address that has had too many. What is right is not:
// others may come from the same address.
func (l *login) delayRefusal() {
	if !l.server.failed.Spent(l.from) {
		return
	}
	select {
	case <-time.After(failedPause):
	case <-l.ctx.Done():
	}
}

// findSandbox returns the sandbox that is asked for, and the key of its owner that is shown.
func (l *login) findSandbox(key ssh.PublicKey) (sandpit.Sandbox, store.SSHKey, error) {
	if _, ok := key.(*ssh.Certificate); ok {
		return sandpit.Sandbox{}, store.SSHKey{}, errLogin
	}
	// Without a sandbox the key is looked up as well: it shall take as long.
	box, missing := l.server.o.Manager.Get(sandpit.ID(l.user))
	found, err := l.server.o.Keys.Of(l.ctx, box.Lease.Owner, key)
	switch {
	case sandpit.CodeOf(err) == sandpit.NotFound, err == nil && missing != nil:
		return box, found, errLogin
	case err != nil:
		return box, found, err
	}
	return box, found, nil
}

// acceptKey admits a client that proved to have the private key.
func (l *login) acceptKey(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	l.user = meta.User()
	box, found, err := l.findSandbox(key)
	if err != nil {
		return nil, err
	}
	ctx, release, err := l.server.o.Keys.Attach(l.ctx, found)
	if err != nil {
		return nil, orLogin(err)
	}
	l.server.o.Keys.Used(l.ctx, found)
	l.useSandbox(ctx, release, box, box.Lease.Owner, "key "+found.ID)
	return &ssh.Permissions{}, nil
}

// acceptToken admits the holder of a token, which it uses up.
func (l *login) acceptToken(meta ssh.ConnMetadata, secret []byte) (*ssh.Permissions, error) {
	l.tried, l.user = true, meta.User()
	holder, err := l.server.o.Tokens.Take(sandpit.ID(l.user), string(secret))
	if err != nil {
		l.delayRefusal()
		return nil, errLogin
	}
	box, err := l.server.o.Manager.Get(sandpit.ID(l.user))
	if err != nil {
		return nil, errLogin // it has been forgotten meanwhile
	}
	ctx, release, err := l.server.o.Tokens.Attach(l.ctx, box.ID, holder)
	if err != nil {
		return nil, orLogin(err)
	}
	l.useSandbox(ctx, release, box, holder.Owner, "token")
	return &ssh.Permissions{}, nil
}

// orLogin is errLogin for a key or token that has ended.
func orLogin(err error) error {
	if code := sandpit.CodeOf(err); code == sandpit.Unauthenticated || code == sandpit.NotFound {
		return errLogin
	}
	return err
}

// useSandbox uses the sandbox for an authenticated client until ctx ends. If that fails, the
// client receives the reason in the banner.
func (l *login) useSandbox(ctx context.Context, release func(), box sandpit.Sandbox, actor, with string) {
	l.actor, l.with, l.release = actor, with, release
	if l.refusal = l.server.crowd.admitOwner(l.visitor, actor); l.refusal == nil {
		l.sandbox, l.refusal = l.server.o.Manager.Use(manager.WithActor(ctx, actor), box.ID)
	}
	if l.refusal == nil {
		return
	}
	text := "sandpit: " + l.refusal.Error() + "\n"
	if hint := sandpit.HintOf(l.refusal); hint != "" {
		text += "hint: " + hint + "\n"
	}
	_ = l.banner(toVisible(text)) // the client sees the end of the connection in any case
}

// toVisible leaves out what a terminal would take for more than text.
func toVisible(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// logRefusal logs a connection that failed before login.
func (s *Server) logRefusal(ctx context.Context, l *login, err error) {
	s.o.Log.DebugContext(ctx, "an SSH connection has failed", slog.String("address", l.from.String()), slog.Any("error", err))
	report := manager.Report{Actor: l.actor, Action: "ssh log in", Sandbox: sandpit.ID(l.user), Err: err}
	if l.actor == "" {
		if !l.tried || !s.failed.Fail(l.from) {
			return // a connection that said nothing, or one of too many
		}
		report.Actor, report.Sandbox, report.Err = api.AddressActor(l.from), "", errLogin
		user := l.user
		if len(user) > 64 {
			user = user[:64]
		}
		report.Args = map[string]string{"user": toVisible(user)}
	}
	if errors.Is(err, errSlow) {
		report.Err = errSlow
	}
	s.o.Manager.Events().Record(report)
}

// patient is a connection whose client may not stop taking what it is sent.
type patient struct{ net.Conn }

// Write implements net.Conn.
func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}
