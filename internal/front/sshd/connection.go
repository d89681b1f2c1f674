package sshd

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// lastWords is how long it may take to send clients the reason why a connection ends. The
// operation that ends the sandbox waits for it.
const lastWords = 2 * time.Second

// connection is a connection after login.
type connection struct {
	server  *Server
	conn    *ssh.ServerConn
	sandbox *manager.Handle
	actor   string
	// ctx ends when the sandbox is taken away, the server ends or the client is to go.
	ctx    context.Context //nolint:containedctx // this is what a connection is about
	cancel context.CancelCauseFunc
	begin  time.Time
	active atomic.Int64   // when something was carried last, in nanoseconds after begin
	group  sync.WaitGroup // of channels
	slots  chan struct{}  // that channels take
	memory *memory.Account

	mu    sync.Mutex
	ports map[int]bool // forwarded to, and reported
}

func newConnection(s *Server, conn *ssh.ServerConn, l *login) *connection {
	c := &connection{
		server: s, conn: conn, sandbox: l.sandbox, actor: l.actor, begin: time.Now(),
		slots: make(chan struct{}, s.o.MaxChannels), ports: make(map[int]bool), memory: s.o.Memory.OpenRequest(l.actor),
	}
	c.ctx, c.cancel = context.WithCancelCause(l.sandbox.Context())
	// The visitor's own way to end it is that of the login, whose context this one has.
	s.crowd.setIdleTime(l.visitor, c.idleTime)
	c.reportEvent("ssh", map[string]string{"with": l.with, "address": l.from.String()}, nil, 0)
	return c
}

// reportEvent adds to the trail of events what the client does.
func (c *connection) reportEvent(action string, args map[string]string, err error, took time.Duration) {
	c.server.o.Manager.Events().Record(manager.Report{Actor: c.actor, Action: action, Sandbox: c.sandbox.ID(), Args: args, Err: err, Took: took})
}

// idleTime returns how long nothing was carried.
func (c *connection) idleTime() time.Duration {
	return time.Since(c.begin) - time.Duration(c.active.Load())
}

// recordTraffic notes that something is carried.
func (c *connection) recordTraffic() { c.active.Store(int64(time.Since(c.begin))) }

// channelCost is how much memory a channel takes, in bytes: what a client may send before
// it is read, which the library keeps, and what is on its way to the client.
const channelCost = 2<<20 + 256<<10

// serveChannels answers until the connection ends, one way or the other.
func (c *connection) serveChannels(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	defer c.memory.Close()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		for r := range requests {
			if r.WantReply {
				_ = r.Reply(false, nil) // fails only if the client is gone
			}
		}
	})
	group.Go(c.watchConnection)
	group.Go(func() { // closes the connection when it is to end
		<-c.ctx.Done()
		timer := time.AfterFunc(lastWords, func() { _ = c.conn.Close() })
		defer timer.Stop()
		c.waitForChannels()
		c.group.Wait()
		_ = c.conn.Close() // it may be gone already
	})
	for offer := range channels {
		c.openChannel(offer)
	}
	c.cancel(errGone)
}

// errGone is why things end whose client has gone.
var errGone = sandpit.Errorf(sandpit.Canceled, "the client has gone")

// openChannel takes a channel, or refuses it.
func (c *connection) openChannel(offer ssh.NewChannel) {
	var serve func(ssh.NewChannel)
	switch offer.ChannelType() {
	case "session":
		serve = c.serveSession
	case "direct-tcpip":
		serve = c.forwardPort
	default:
		_ = offer.Reject(ssh.UnknownChannelType, "unknown channel type") // fails only if the client is gone
		return
	}
	if !c.reserveChannel() {
		_ = offer.Reject(ssh.ResourceShortage, fmt.Sprintf("there are %d channels already, or the connection ends", cap(c.slots))) // as above
		return
	}
	if err := c.memory.Reserve(channelCost); err != nil {
		c.releaseChannel()
		_ = offer.Reject(ssh.ResourceShortage, toVisible(err.Error())) // as above
		return
	}
	go func() {
		defer c.releaseChannel()
		defer c.memory.Return(channelCost)
		serve(offer)
	}()
}

// waitForChannels waits until no channel is being opened any more: later ones see that the
// connection ends.
func (c *connection) waitForChannels() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// reserveChannel counts one more channel, if there may be one.
func (c *connection) reserveChannel() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	select {
	case c.slots <- struct{}{}:
		c.group.Add(1)
		return true
	default:
		return false
	}
}

// releaseChannel counts one channel less.
func (c *connection) releaseChannel() {
	<-c.slots
	c.group.Done()
}

// watchConnection ends connections that are dead, or carry nothing.
func (c *connection) watchConnection() {
	ticker := time.NewTicker(c.server.o.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		if limit := c.server.o.IdleTimeout; c.idleTime() >= limit {
			c.cancel(sandpit.Errorf(sandpit.Timeout, "this connection has carried nothing for %s, and ends", limit))
			return
		}
		if !c.isAlive() {
			return
		}
	}
}

// isAlive asks the client, and closes the connection if it does not answer.
func (c *connection) isAlive() bool {
	timer := time.AfterFunc(2*c.server.o.KeepAlive, func() { _ = c.conn.Close() })
	defer timer.Stop()
	_, _, err := c.conn.SendRequest("keepalive@openssh.com", true, nil)
	return err == nil
}

// lively is a channel that reports traffic.
type lively struct {
	ssh.Channel

	touch func()
}

// Read implements io.Reader.
func (l lively) Read(b []byte) (int, error) {
	n, err := l.Channel.Read(b)
	l.touch()
	return n, err
}

// Write implements io.Writer.
func (l lively) Write(b []byte) (int, error) {
	n, err := l.Channel.Write(b)
	l.touch()
	return n, err
}

// Stderr implements ssh.Channel.
func (l lively) Stderr() io.ReadWriter { return livelyStderr{l.Channel.Stderr(), l.touch} }

type livelyStderr struct {
	io.ReadWriter

	touch func()
}

// Write implements io.Writer.
func (l livelyStderr) Write(b []byte) (int, error) {
	n, err := l.ReadWriter.Write(b)
	l.touch()
	return n, err
}

// forwarded is what a client says of a connection that it wants.
type forwarded struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

const (
	// guestPort is the port of the guest's own protocol, which is not forwarded.
	guestPort = 49983
	// dialTime is how long it may take to reach a port inside.
	dialTime = 10 * time.Second
)

// targetPort returns the port inside that a client wants, or why it gets none.
func (f forwarded) targetPort() (int, error) {
	ip := net.ParseIP(f.Host)
	switch {
	case f.Host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return 0, sandpit.Errorf(sandpit.PermissionDenied, "connections go to localhost of the sandbox only")
	case f.Port == 0 || f.Port > 65535:
		return 0, sandpit.Errorf(sandpit.Invalid, "invalid port %s", strconv.FormatUint(uint64(f.Port), 10))
	case f.Port == guestPort:
		return 0, sandpit.Errorf(sandpit.PermissionDenied, "port %d is the sandbox's own", guestPort)
	}
	return int(f.Port), nil
}

// forwardPort carries a connection to a port inside.
func (c *connection) forwardPort(offer ssh.NewChannel) {
	conn, err := c.dialPort(offer.ExtraData())
	if err != nil {
		reason := ssh.ConnectionFailed
		if code := sandpit.CodeOf(err); code == sandpit.PermissionDenied || code == sandpit.Invalid || code == sandpit.Unsupported {
			reason = ssh.Prohibited
		}
		_ = offer.Reject(reason, toVisible(err.Error())) // fails only if the client is gone
		return
	}
	defer conn.Close()
	channel, requests, err := offer.Accept()
	if err != nil {
		return // the client has gone
	}
	defer channel.Close()
	stop := context.AfterFunc(c.ctx, func() { _, _ = conn.Close(), channel.Close() })
	defer stop()
	copyBoth(lively{channel, c.recordTraffic}, conn, requests)
}

func (c *connection) dialPort(raw []byte) (net.Conn, error) {
	var f forwarded
	if err := ssh.Unmarshal(raw, &f); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "a request that makes no sense")
	}
	port, err := f.targetPort()
	if err == nil {
		var d sandpit.Dialer
		var ok bool
		if d, ok = sandpit.As[sandpit.Dialer](c.sandbox.Instance()); ok {
			ctx, cancel := context.WithTimeout(c.ctx, dialTime)
			defer cancel()
			c.reportForward(port)
			return d.Dial(ctx, port)
		}
		err = sandpit.Errorf(sandpit.Unsupported, "this sandbox's provider cannot open connections")
	}
	c.reportEvent("ssh forward", map[string]string{"port": strconv.FormatUint(uint64(f.Port), 10)}, err, 0)
	return nil, err
}

// reportForward reports each port once, because a browser opens many connections.
func (c *connection) reportForward(port int) {
	c.mu.Lock()
	told := c.ports[port]
	if len(c.ports) < cap(c.slots) {
		c.ports[port] = true
	}
	c.mu.Unlock()
	if !told {
		c.reportEvent("ssh forward", map[string]string{"port": strconv.Itoa(port)}, nil, 0)
	}
}

// copyBoth copies both ways until both are done, or one is broken. It closes both.
func copyBoth(channel lively, conn net.Conn, requests <-chan *ssh.Request) {
	end := func() { _, _ = conn.Close(), channel.Close() } // one of them may be closed already
	var requested, copied sync.WaitGroup
	requested.Go(func() { ssh.DiscardRequests(requests) }) // until the client has closed the channel, too
	copied.Go(func() {
		_, err := io.Copy(conn, channel)
		half, ok := conn.(interface{ CloseWrite() error })
		if !ok || err != nil || half.CloseWrite() != nil {
			end() // it failed, or it cannot be closed for writing only
		}
	})
	_, err := io.Copy(channel, conn)
	if err != nil || channel.CloseWrite() != nil {
		end()
	}
	copied.Wait()
	end()
	requested.Wait()
}
