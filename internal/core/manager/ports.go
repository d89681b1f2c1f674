package manager

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// portPublisher publishes the ports of sandboxes.
type portPublisher struct {
	core       *core
	log        *slog.Logger
	o          *Options
	sandboxes  *recordIndex
	useSandbox func(context.Context, sandpit.ID) (*Handle, error)
}

// Publisher opens ports of the machine for ports of sandboxes.
type Publisher interface {
	// Publish opens all ports of a sandbox, or none, and returns them with their addresses. Ports
	// that are open already stay open.
	Publish(ctx context.Context, id sandpit.ID, ports []sandpit.Port,
		dial func(ctx context.Context, port int) (net.Conn, error)) ([]sandpit.Port, error)
	// Withdraw closes the ports of a sandbox, if it has any.
	Withdraw(id sandpit.ID)
}

// noPublisher refuses to publish ports.
type noPublisher struct{}

func (noPublisher) Publish(context.Context, sandpit.ID, []sandpit.Port, func(context.Context, int) (net.Conn, error)) ([]sandpit.Port, error) {
	return nil, sandpit.Errorf(sandpit.Unsupported, "this server cannot publish ports")
}

func (noPublisher) Withdraw(sandpit.ID) {}

// publishPorts opens the ports that a sandbox asks for, and returns them with their addresses.
func (pp *portPublisher) publishPorts(ctx context.Context, rec *sandboxRecord, i sandpit.Instance, ports []sandpit.Port) ([]sandpit.Port, error) {
	if len(ports) == 0 {
		return nil, nil
	}
	if _, ok := as[sandpit.Dialer](i); !ok {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes cannot have published ports"),
			"sandpit url gives the URL of a port")
	}
	return pp.o.Publisher.Publish(ctx, rec.id, ports, pp.newDialer(rec.id))
}

// republishPorts opens ports of sandboxes that are not open: those of an earlier manager's
// sandboxes, and those whose address was in use.
func (pp *portPublisher) republishPorts(ctx context.Context) {
	for _, rec := range pp.sandboxes.all() {
		if row := rec.currentRow(); len(row.Spec.Ports) == 0 || !hasOpenPorts(row.State) {
			continue
		}
		err := pp.core.runIfUnlocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
			row := rec.currentRow()
			if !hasOpenPorts(row.State) {
				return errNothingToDo
			}
			_, err := pp.o.Publisher.Publish(ctx, rec.id, row.Spec.Ports, pp.newDialer(rec.id))
			return err
		})
		if err != nil {
			pp.log.WarnContext(ctx, "manager: ports not published", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		}
	}
}

// hasOpenPorts reports whether a sandbox in this state has its ports open. A sandbox that does not
// run keeps them reserved.
func hasOpenPorts(s sandpit.State) bool {
	switch s {
	case sandpit.StateCreating, sandpit.StateDeleting, sandpit.StateDeleted:
		return false
	default:
		return true
	}
}

// newDialer returns a function that opens connections into a sandbox. A connection counts as use of
// the sandbox while it is open.
func (pp *portPublisher) newDialer(id sandpit.ID) func(ctx context.Context, port int) (net.Conn, error) {
	return func(ctx context.Context, port int) (net.Conn, error) {
		h, err := pp.useSandbox(ctx, id)
		if err != nil {
			return nil, err
		}
		d, ok := as[sandpit.Dialer](h.Instance())
		if !ok {
			h.Release()
			return nil, sandpit.Errorf(sandpit.Unsupported, "sandbox %s has no connections of this kind", id)
		}
		conn, err := d.Dial(h.Context(), port)
		if err != nil {
			h.Release()
			return nil, err
		}
		c := &heldConn{Conn: conn, handle: h}
		context.AfterFunc(h.Context(), func() { _ = conn.Close() }) // ends its users' reads and writes
		return c, nil
	}
}

// heldConn is a connection that counts as use of its sandbox.
type heldConn struct {
	net.Conn

	handle *Handle
	once   sync.Once
	err    error
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.once.Do(func() {
		c.err = c.Conn.Close()
		c.handle.Release()
	})
	return c.err
}

// CloseWrite closes the write direction.
func (c *heldConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return c.Close()
	}
	return half.CloseWrite()
}
