package toolbox

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// maxFrame is the maximum number of bytes of a client's frame.
	maxFrame = 1 << 20
	// maxMissedBeats is the number of heartbeats in which a client must respond to a ping. It
	// cannot while its program does not read input.
	maxMissedBeats = 4
	// endTimeout is how long it may take to send the last frame.
	endTimeout = 10 * time.Second
	// maxReason is the maximum number of bytes of the reason of a close frame.
	maxReason = 123
)

// isUpgrade reports whether a request is for a WebSocket.
func isUpgrade(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// checkUpgrade checks that a request is for a WebSocket, and not from a page of another site.
func checkUpgrade(r *http.Request) error {
	if !isUpgrade(r) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "this needs a WebSocket"), "connect by HTTP/1.1 with a WebSocket client")
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil // not a browser
	}
	// The page must be of this server: the edge has checked the host name.
	if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
		return sandpit.Errorf(sandpit.PermissionDenied, "pages of %.200q may not open WebSockets", origin)
	}
	return nil
}

// offeredProtocols returns the subprotocols that a client offers.
func offeredProtocols(r *http.Request) (list []string) {
	for _, value := range r.Header.Values("Sec-Websocket-Protocol") {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				list = append(list, name)
			}
		}
	}
	return list
}

// chooseProtocol returns the subprotocol for the response: the client must get one of those
// that it offers.
func chooseProtocol(r *http.Request) []string {
	offered := offeredProtocols(r)
	for _, name := range offered {
		if strings.EqualFold(name, exitProtocol) {
			return []string{name}
		}
	}
	return offered[:min(len(offered), 1)]
}

// socket is a WebSocket of a call. Sending is for one goroutine.
type socket struct {
	conn    *websocket.Conn
	call    *call
	ctx     context.Context //nolint:containedctx // ends with the call, or when the client disconnects
	cancel  context.CancelFunc
	reading context.Context //nolint:containedctx // of reads: canceling one closes the connection
	endRead context.CancelFunc
	group   sync.WaitGroup
}

// errResponded ends a call whose response was sent.
var errResponded = errors.New("the response was sent")

// openSocket upgrades a request. From then on the connection belongs to the socket, which the
// caller must close.
func openSocket(ctx context.Context, c *call) (*socket, error) {
	if err := checkUpgrade(c.r); err != nil {
		return nil, err
	}
	c.w.begun = true // the library reports errors from here on
	// checkUpgrade has compared the origin with the host.
	conn, err := websocket.Accept(c.w.ResponseWriter, c.r, &websocket.AcceptOptions{Subprotocols: chooseProtocol(c.r)})
	if err != nil {
		return nil, errResponded
	}
	conn.SetReadLimit(maxFrame)
	k := &socket{conn: conn, call: c}
	k.reading, k.endRead = context.WithCancel(context.WithoutCancel(ctx))
	k.ctx, k.cancel = context.WithCancel(ctx)
	k.group.Go(func() { k.pingClient(c.server.o.Heartbeat) })
	return k, nil
}

// close closes the connection, and waits for the goroutines of the socket.
func (k *socket) close() {
	k.cancel()
	k.endRead()
	_ = k.conn.CloseNow() // it may be closed
	k.group.Wait()
}

// receive calls handle in a goroutine with each frame until the client disconnects or handle
// fails. Then the context of the socket ends.
func (k *socket) receive(handle func(kind websocket.MessageType, frame []byte) error) {
	k.group.Go(func() {
		defer k.cancel()
		for {
			kind, frame, err := k.conn.Read(k.reading)
			if err != nil {
				return
			}
			if err := handle(kind, frame); err != nil {
				return
			}
		}
	})
}

// ignoreInput detects that the client disconnects.
func (k *socket) ignoreInput() {
	k.receive(func(websocket.MessageType, []byte) error { return nil })
}

// pingClient disconnects a client that does not respond.
func (k *socket) pingClient(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-ticker.C:
		}
		answered, cancel := context.WithTimeout(k.reading, maxMissedBeats*every)
		err := k.conn.Ping(answered)
		cancel()
		if err != nil {
			k.cancel()
			return
		}
	}
}

// send sends a frame. A frame that is being sent when the sandbox stops has some more time:
// canceling it would close the connection.
func (k *socket) send(kind websocket.MessageType, frame []byte) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	return k.sendLast(kind, frame, writeTimeout)
}

// sendLast is send also after the end of the context, for a limited time.
func (k *socket) sendLast(kind websocket.MessageType, frame []byte, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), limit)
	defer cancel()
	stop := context.AfterFunc(k.ctx, func() { time.AfterFunc(endTimeout, cancel) })
	defer stop()
	return k.conn.Write(ctx, kind, frame)
}

// hasClient reports whether the client may still be connected: the context has not ended, or
// because of the sandbox.
func (k *socket) hasClient() bool {
	return k.ctx.Err() == nil || k.call.sandbox.Context().Err() != nil
}

// finish closes the connection normally, or with the reason of an error.
func (k *socket) finish(err error) {
	if !k.hasClient() {
		return
	}
	if held := k.call.sandbox.Context(); held.Err() != nil {
		err = context.Cause(held)
	}
	if err == nil {
		k.closeWith(websocket.StatusNormalClosure, "")
		return
	}
	k.closeWith(websocket.StatusInternalError, api.ProblemOf(k.call.r.Context(), err).Detail)
}

// closeWith closes the connection with a code and a reason, which is shortened.
func (k *socket) closeWith(code websocket.StatusCode, reason string) {
	_ = k.conn.Close(code, toText(reason[:min(len(reason), maxReason-3)])) // the client may have disconnected
}
