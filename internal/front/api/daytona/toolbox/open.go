package toolbox

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Names of the token that opens a sandbox without an API key.
const (
	headerToken  = "X-Daytona-Preview-Token" //nolint:gosec // a name
	queryToken   = "DAYTONA_SANDBOX_AUTH_KEY"
	cookiePrefix = "daytona-sandbox-auth-"
)

// shownToken returns the token of a request for a sandbox, or "". Browsers cannot send headers
// with a WebSocket, so it may be in the query or in a cookie.
func shownToken(r *http.Request, id sandpit.ID) string {
	if secret := r.Header.Get(headerToken); secret != "" {
		return secret
	}
	if secret := r.URL.Query().Get(queryToken); secret != "" {
		return secret
	}
	if cookie, err := r.Cookie(cookiePrefix + string(id)); err == nil {
		return cookie.Value
	}
	return ""
}

// authenticate returns the context of a request with a principal: that of its API key, or the
// owner of the token that it shows or with which its URL was signed. The caller calls release
// after the response.
//
// Unauthenticated: there is neither. Exhausted: the owner has too many requests.
func (s *Server) authenticate(r *http.Request, id sandpit.ID) (ctx context.Context, release func(), err error) {
	if _, err = api.PrincipalOf(r.Context()); err == nil {
		return r.Context(), func() {}, nil
	}
	end := func() {}
	secret := shownToken(r, id)
	switch {
	case isSigned(r):
		ctx, end, err = s.admitSigned(r, id)
	case secret == "" || s.o.Admit == nil:
	default:
		ctx, end, err = s.o.Admit(r, id, secret)
	}
	if err != nil {
		return nil, nil, err
	}
	client, err := api.PrincipalOf(ctx)
	leave := func() {}
	if err == nil {
		leave, err = api.CountRequest(r, client.Owner)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	// The edge has no owner for a request without a key: its memory was that of all of them.
	account := s.o.Memory.OpenRequest(client.Owner)
	return context.WithValue(memory.WithAccount(ctx, account), admittedKey{}, id), func() {
		account.Close()
		end()
		leave()
	}, nil
}

// openSandbox returns a handle of the running sandbox in the path of a request, and its record.
//
// NotFound: there is no such sandbox, or it belongs to another owner; the errors are equal. An
// error with the status 400: the sandbox is not running.
func (s *Server) openSandbox(ctx context.Context, id sandpit.ID) (*manager.Handle, sandpit.Sandbox, error) {
	about, err := s.findSandbox(ctx, id)
	if err != nil {
		return nil, about, err
	}
	if about.State == sandpit.StateDeleting || about.State == sandpit.StateDeleted {
		return nil, about, sandpit.Errorf(sandpit.NotFound, "Sandbox %.64s not found", string(id))
	}
	held, err := s.o.Manager.Use(ctx, id)
	switch sandpit.CodeOf(err) {
	case sandpit.Gone:
		err = sandpit.Errorf(sandpit.NotFound, "Sandbox %.64s not found", string(id))
	case sandpit.Conflict:
		err = sandpit.Errorf(sandpit.Invalid, "%s. Is the Sandbox started?", err.Error())
	default:
	}
	return held, about, err
}

// findSandbox returns a sandbox that the client may use: by its key, or by a token for it, which an
// administrator may have requested for a sandbox of another owner.
func (s *Server) findSandbox(ctx context.Context, id sandpit.ID) (sandpit.Sandbox, error) {
	if admitted, ok := ctx.Value(admittedKey{}).(sandpit.ID); ok && admitted == id {
		return s.o.Manager.Get(id)
	}
	return api.Find(ctx, s.o.Manager, id)
}

// admittedKey is the key of the sandbox for which the request of a context has shown a token.
type admittedKey struct{}

// call is a request for a sandbox that is in use.
type call struct {
	server  *Server
	w       *response
	r       *http.Request
	id      sandpit.ID
	about   sandpit.Sandbox
	guest   sandpit.Guest
	sandbox *manager.Handle
}

// handler handles a call. An error becomes the response, unless that has begun; then the
// connection is cut. ctx ends with the request, or when the sandbox stops.
type handler func(ctx context.Context, c *call) error

// newHandler returns an HTTP handler that calls h while it holds the sandbox in the path.
func (s *Server) newHandler(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := sandpit.ID(r.PathValue("sandbox"))
		ctx, release, err := s.authenticate(r, id)
		if err != nil {
			WriteError(w, r, err)
			return
		}
		defer release()
		r = r.WithContext(ctx)
		held, about, err := s.openSandbox(ctx, id)
		if err == nil {
			if err = memory.AccountOf(ctx).Reserve(callCost); err != nil {
				held.Release()
			}
		}
		if err != nil {
			WriteError(w, r, err)
			return
		}
		body := newRequestBody(w, r)
		r.Body = body
		c := &call{server: s, w: &response{ResponseWriter: w, body: body}, r: r, id: id, about: about, guest: s.variables.wrapGuest(id, held.Guest()), sandbox: held}
		c.serve(h)
	})
}

// serve calls h and releases the sandbox.
func (c *call) serve(h handler) {
	defer c.sandbox.Release()
	ctx := c.sandbox.Context()
	stopLimit := limitEnd(ctx, c.w)
	err := h(ctx, c)
	stopLimit()
	if err == nil || errors.Is(err, errResponded) {
		return
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the cause instead of its consequence
	}
	if c.w.begun {
		panic(http.ErrAbortHandler) // the response must not look complete
	}
	for _, name := range contentHeaders() {
		c.w.Header().Del(name)
	}
	WriteError(c.w, c.r, sandpit.WithSubject(err, sandpit.Subject{Provider: c.sandbox.Provider(), Sandbox: c.id}))
}

// contentHeaders returns the headers of a file that an error in its place must not have.
func contentHeaders() []string {
	return []string{"Accept-Ranges", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Range", "ETag", "Last-Modified"}
}

// limitEnd limits reading and writing once ctx has ended: otherwise a client that does neither
// would keep the sandbox in use. The caller calls release when the response is complete.
func limitEnd(ctx context.Context, w *response) (release func()) {
	limited := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(limited)
		w.body.interruptRead()
		w.setFinalDeadline()
	})
	return func() {
		if !stop() {
			<-limited
		}
	}
}

// setWriteDeadline limits the time for sending what follows. The edge clears the deadline
// before the next request.
func setWriteDeadline(w http.ResponseWriter, d time.Duration) {
	if a, ok := w.(*response); ok {
		a.setWriteDeadline(d)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // connections without deadlines need none
}
