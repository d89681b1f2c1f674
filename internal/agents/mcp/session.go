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

// Session is a connection of a client that speaks by requests of HTTP (the protocol's
// "streamable HTTP"). All methods may be called concurrently.
type Session struct {
	connection *connection
	server     *sdk.Server
	handler    *sdk.StreamableHTTPHandler
}

// NewSession returns a session of a client that is called id, which nobody can guess. It
// begins with the client's first request, and ends when there was none for the time idle.
//
// Hosts and origins of requests, and the sizes and times of bodies, are the caller's to check.
func NewSession(o Options, id string, idle time.Duration) *Session {
	s := &Session{connection: &connection{Options: o}}
	var account *memory.Account
	if o.Memory != nil {
		account = o.Memory()
	}
	s.server = s.connection.newServer(id)
	s.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.server }, &sdk.StreamableHTTPOptions{
		EventStore: &replayStore{memory: account}, SessionTimeout: idle, MaxRequestBodyBytes: MaxMessage,
		DisableLocalhostProtection: true, // the caller knows more names
		Logger:                     o.Log,
	})
	return s
}

// ServeHTTP answers a request. One that ends the session is for Close.
func (s *Session) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Begun reports whether the client has said hello and the session goes on.
func (s *Session) Begun() bool { return s.serverSession() != nil }

func (s *Session) serverSession() *sdk.ServerSession {
	for inner := range s.server.Sessions() {
		return inner
	}
	return nil
}

// Wait waits until the session ends, and gives its sandbox back, also when ctx has ended. An error is
// about the sandbox.
func (s *Session) Wait(ctx context.Context) error {
	if inner := s.serverSession(); inner != nil {
		_ = inner.Wait() // how a client goes is its own business
	}
	return s.connection.close(ctx)
}

// Close ends the session with all its calls. Who waits gives the sandbox back.
func (s *Session) Close() {
	s.connection.calls.endAll()
	if inner := s.serverSession(); inner != nil {
		_ = inner.Close() // how a client goes is its own business
	}
}
