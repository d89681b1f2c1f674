package daytona

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// PathEvents is the path of the WebSocket for events, which speaks the protocol of socket.io:
// text frames that begin with a number for their kind.
const PathEvents = Prefix + "/socket.io/"

const (
	// maxListeners is how many connections for events an owner may have, and maxStrangers how
	// many there may be whose client has not sent its key yet. Another one replaces the oldest of the
	// address that has the most: clients send their key at once.
	maxListeners = 64
	maxStrangers = 64
	// maxEvents is how many events may wait for a client. A client that reads too slowly is
	// disconnected; it connects again, and asks for the state of its sandboxes anyway.
	maxEvents = 256
	// maxEventFrame is the maximum number of bytes of a client's frame.
	maxEventFrame = 16 << 10
	// connectTimeout is how long a client may take to send its key.
	connectTimeout = 10 * time.Second
	// writeTimeout is how long sending one part of a stream may take.
	writeTimeout = 30 * time.Second
	// pingInterval is the time between two pings, and pingTimeout how long a client may take to
	// respond to one.
	pingInterval = 25 * time.Second
	pingTimeout  = 20 * time.Second
)

// The kinds of frames of the protocol.
const (
	frameOpen       = "0"
	frameClose      = "1"
	framePing       = "2"
	frameConnect    = "40"
	frameDisconnect = "41"
	frameEvent      = "42"
	frameRefusal    = "44"
)

// eventHandlers send clients the changes of their sandboxes' states.
type eventHandlers struct {
	manager   *manager.Manager
	describer *describer
	life      context.Context //nolint:containedctx // of connections whose client has not sent its key
	stop      context.CancelFunc

	mu        sync.Mutex
	closed    bool
	strangers []*stranger                       // the oldest first
	listeners map[string]map[*listener]struct{} // by owner
	group     sync.WaitGroup
}

// stranger is a connection whose client has not sent its key.
type stranger struct {
	client string
	// ctx ends with the server, or when another connection needs the place.
	ctx context.Context //nolint:containedctx // of the connection
	end context.CancelFunc
}

// listener is a connection whose client has sent its key.
type listener struct {
	events chan stateChange
	// end ends the connection.
	end context.CancelFunc
}

// stateChange is a change of a sandbox's state.
type stateChange struct {
	sandbox sandpit.Sandbox
	from    sandpit.State
}

func newEvents(m *manager.Manager, d *describer) *eventHandlers {
	h := &eventHandlers{manager: m, describer: d, listeners: make(map[string]map[*listener]struct{})}
	h.life, h.stop = context.WithCancel(context.Background())
	m.OnState(h.notify)
	return h
}

// close disconnects all clients, and refuses further ones. It is idempotent.
func (h *eventHandlers) close() {
	h.mu.Lock()
	h.closed = true
	for _, list := range h.listeners {
		for l := range list {
			l.end()
		}
	}
	h.mu.Unlock()
	h.stop()
	h.group.Wait()
}

// notify passes a change on to the clients of the sandbox's owner. It does not wait for them.
func (h *eventHandlers) notify(b sandpit.Sandbox, from sandpit.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners[b.Lease.Owner] {
		select {
		case l.events <- stateChange{b, from}:
		default:
			l.end()
		}
	}
}

// enter counts a connection whose client is unknown. The caller calls leave at its end.
func (h *eventHandlers) enter(client string) (*stranger, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, api.ErrDraining
	}
	if len(h.strangers) >= maxStrangers {
		h.dropStranger()
	}
	s := &stranger{client: client}
	s.ctx, s.end = context.WithCancel(h.life)
	h.strangers = append(h.strangers, s)
	h.group.Add(1)
	return s, nil
}

// dropStranger ends the oldest connection of the client that has the most. The caller holds mu.
func (h *eventHandlers) dropStranger() {
	counts, most := make(map[string]int), ""
	for _, s := range h.strangers {
		if counts[s.client]++; counts[s.client] > counts[most] {
			most = s.client
		}
	}
	i := slices.IndexFunc(h.strangers, func(s *stranger) bool { return s.client == most })
	h.strangers[i].end()
	h.strangers = slices.Delete(h.strangers, i, i+1)
}

func (h *eventHandlers) leave() { h.group.Done() }

// introduce ends the time in which the client of a connection is unknown.
func (h *eventHandlers) introduce(s *stranger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.end()
	h.strangers = slices.DeleteFunc(h.strangers, func(other *stranger) bool { return other == s })
}

// addListener adds a connection of an owner. Exhausted: the owner has too many.
func (h *eventHandlers) addListener(owner string, l *listener) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return api.ErrDraining
	case len(h.listeners[owner]) >= maxListeners:
		return sandpit.Errorf(sandpit.Exhausted, "too many connections for events: an owner may have %d", maxListeners)
	case h.listeners[owner] == nil:
		h.listeners[owner] = make(map[*listener]struct{})
	}
	h.listeners[owner][l] = struct{}{}
	return nil
}

func (h *eventHandlers) removeListener(owner string, l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners[owner], l)
	if len(h.listeners[owner]) == 0 {
		delete(h.listeners, owner)
	}
}

// serveSocket serves a connection for events until either side ends it.
func (h *eventHandlers) serveSocket(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		WriteError(w, r, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "events need a WebSocket"), "use the transport websocket"))
		return
	}
	unknown, err := h.enter(api.ClientName(r))
	if err != nil {
		WriteError(w, r, err)
		return
	}
	defer h.leave()
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		h.introduce(unknown)
		return // the library has responded
	}
	defer func() { _ = conn.CloseNow() }() // it may be closed
	conn.SetReadLimit(maxEventFrame)
	s := &socket{conn: conn, r: r, handlers: h}
	client, err := s.connect(unknown.ctx)
	h.introduce(unknown)
	if err == nil {
		err = s.serve(client)
	}
	if err != nil {
		s.refuse(err)
	}
}

// socket is one connection.
type socket struct {
	conn     *websocket.Conn
	r        *http.Request
	handlers *eventHandlers
}

// write sends a frame of a kind, whose data is a JSON value unless it is nil.
func (s *socket) write(ctx context.Context, kind string, data any) error {
	text := []byte(kind)
	if data != nil {
		encoded, err := json.Marshal(data)
		if err != nil {
			return sandpit.Errorf(sandpit.Internal, "encode an event: %w", err)
		}
		text = append(text, encoded...)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, text)
}

// connect begins the session, and returns the client that its key names. It ends with life.
func (s *socket) connect(life context.Context) (api.Principal, error) {
	ctx, cancel := context.WithTimeout(s.r.Context(), connectTimeout)
	defer cancel()
	stop := context.AfterFunc(life, cancel)
	defer stop()
	err := s.write(ctx, frameOpen, map[string]any{
		"sid": api.RequestID(s.r.Context()), "upgrades": []string{}, "pingInterval": pingInterval.Milliseconds(), "pingTimeout": pingTimeout.Milliseconds(),
		"maxPayload": maxEventFrame,
	})
	if err != nil {
		return api.Principal{}, err
	}
	_, frame, err := s.conn.Read(ctx)
	if err != nil {
		return api.Principal{}, err
	}
	text, ok := strings.CutPrefix(string(frame), frameConnect)
	var in struct {
		Token string `json:"token"`
	}
	if !ok || text != "" && json.Unmarshal([]byte(text), &in) != nil {
		return api.Principal{}, sandpit.Errorf(sandpit.Invalid, "the first frame must connect")
	}
	return api.Authenticate(s.r, in.Token)
}

// refuse tells the client why the connection ends.
func (s *socket) refuse(err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.r.Context()), time.Second)
	defer cancel()
	message := api.ProblemOf(ctx, err).Detail
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		message = "Unauthorized"
	}
	_ = s.write(ctx, frameRefusal, map[string]string{"message": message}) // the client may have disconnected
	_ = s.conn.Close(websocket.StatusNormalClosure, "")
}

// serve sends events to a client until the connection ends. It returns an error if the client
// may not listen.
func (s *socket) serve(client api.Principal) error {
	attached, release, err := api.AttachKey(s.r, client)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(attached)
	defer cancel()
	l := &listener{events: make(chan stateChange, maxEvents), end: cancel}
	if err := s.handlers.addListener(client.Owner, l); err != nil {
		return err
	}
	defer s.handlers.removeListener(client.Owner, l)
	if err := s.write(ctx, frameConnect, map[string]string{"sid": api.RequestID(ctx)}); err != nil {
		return nil // the client has disconnected
	}
	alive := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		s.readFrames(ctx, alive)
	}()
	s.sendEvents(ctx, l, alive)
	cancel() // closes the connection, which ends the reading
	<-done
	return nil
}

// readFrames reads the client's frames until the connection ends. Each one shows that the client
// is alive.
func (s *socket) readFrames(ctx context.Context, alive chan<- struct{}) {
	for {
		_, frame, err := s.conn.Read(ctx)
		text := string(frame)
		if err != nil || text == frameClose || strings.HasPrefix(text, frameDisconnect) {
			return
		}
		select {
		case alive <- struct{}{}:
		default:
		}
	}
}

// sendEvents sends events and pings until the connection ends or the client does not respond.
func (s *socket) sendEvents(ctx context.Context, l *listener, alive <-chan struct{}) {
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	late := time.NewTimer(pingInterval + pingTimeout)
	defer late.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			return
		case <-alive:
			late.Reset(pingInterval + pingTimeout)
		case <-ping.C:
			err = s.write(ctx, framePing, nil)
		case change := <-l.events:
			err = s.sendChange(ctx, change)
		}
		if err != nil {
			return
		}
	}
}

// sendChange sends an event. Sandboxes of which the client sees the same state before and after
// are left out.
func (s *socket) sendChange(ctx context.Context, change stateChange) error {
	from, to := toState(change.from).now, toState(change.sandbox.State).now
	if from == to {
		return nil
	}
	about, err := s.handlers.describer.toSandbox(ctx, externalURL(s.r), change.sandbox)
	if err != nil {
		return err
	}
	return s.write(ctx, frameEvent, []any{"sandbox.state.updated", map[string]any{"sandbox": about, "oldState": from, "newState": to}})
}
