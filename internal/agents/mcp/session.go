package mcp

import (
	"context"
	"net/http"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// HeaderSession is the header in which a client names its session.
const HeaderSession = "Mcp-Session-Id"

// Session is a connection of a client over HTTP (the protocol's "streamable HTTP"). All methods
// may be called concurrently.
type Session struct {
	connection *connection
	server     *sdk.Server
	handler    *sdk.StreamableHTTPHandler
}

// NewSession returns a session with an ID, which must be unguessable. It begins with the client's
// first request, and ends when there was no request for the time idle.
//
// The caller checks hosts and origins of requests, and bounds the size and duration of bodies.
func NewSession(o Options, id string, idle time.Duration) *Session {
	s := &Session{connection: &connection{Options: o}}
	var account *memory.Account
	if o.Memory != nil {
		account = o.Memory()
	}
	s.server = s.connection.newServer(id)
	s.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, &sdk.StreamableHTTPOptions{
		EventStore: &replayStore{memory: account}, SessionTimeout: idle, MaxRequestBodyBytes: MaxMessage,
		DisableLocalhostProtection: true, // the caller checks hosts
		Logger:                     o.Log,
	})
	return s
}

// ServeHTTP serves a request. For a request that ends the session, the caller uses Close instead.
func (s *Session) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Begun reports whether the client has initialized the session and it has not ended.
func (s *Session) Begun() bool { return s.serverSession() != nil }

func (s *Session) serverSession() *sdk.ServerSession {
	for inner := range s.server.Sessions() {
		return inner
	}
	return nil
}

// Wait waits until the session ends and releases its sandbox, even if ctx has ended. It returns the
// error of the release.
func (s *Session) Wait(ctx context.Context) error {
	if inner := s.serverSession(); inner != nil {
		_ = inner.Wait() // the client's error does not matter
	}
	return s.connection.close(ctx)
}

// Close ends the session with all its calls. The caller of Wait releases the sandbox.
func (s *Session) Close() {
	s.connection.calls.endAll()
	if inner := s.serverSession(); inner != nil {
		_ = inner.Close() // the client's error does not matter
	}
}
