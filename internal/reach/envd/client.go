// Package envd is the client of the guest in a sandbox. It implements sandpit.Guest over a
// round tripper that reaches the guest's port. It speaks E2B's envd protocol, so the guest
// may be sandpit's or E2B's.
//
// The responses of a guest are untrusted: sizes are bounded, numbers are checked, and no text
// in a response is used as a path on this machine.
package envd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands/commandsconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem/filesystemconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

const (
	// base is never resolved: the round tripper knows the address of the guest.
	base = "http://guest"

	tokenHeader   = "X-Access-Token"
	timeoutHeader = "Connect-Timeout-Ms"
)

// Client is a sandpit.Guest. All methods may be called concurrently.
type Client struct {
	files // not confined to directories

	auth      *authorized
	http      *http.Client
	processes processconnect.ProcessClient
	lists     processconnect.ProcessClient // for larger responses

	commands     commandsconnect.CommandsClient
	commandLists commandsconnect.CommandsClient // for larger responses
}

var (
	_ sandpit.Guest       = (*Client)(nil)
	_ sandpit.Confiner    = (*Client)(nil)
	_ sandpit.Journal     = (*Client)(nil)
	_ sandpit.GuestServer = (*Client)(nil)
	_ sandpit.Secreter    = (*Client)(nil)

	_ sandpit.ObservedGuest = (*Client)(nil)
)

// New returns a client that reaches the guest's port through rt and authenticates with token.
func New(rt http.RoundTripper, token string) *Client {
	c := &Client{auth: &authorized{rt: rt}}
	c.auth.token.Store(&token)
	c.http = &http.Client{
		Transport: c.auth,
		// Redirects are not followed: the guest must not choose the target of a request.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	usual, large := clientBounds(maxMessage, maxObjects), clientBounds(maxList, maxListObjects)
	c.processes = processconnect.NewProcessClient(c.http, base, usual...)
	c.lists = processconnect.NewProcessClient(c.http, base, large...)
	c.commands = commandsconnect.NewCommandsClient(c.http, base, usual...)
	c.commandLists = commandsconnect.NewCommandsClient(c.http, base, large...)
	c.files = files{
		http:  c.http,
		calls: filesystemconnect.NewFilesystemClient(c.http, base, usual...),
		lists: filesystemconnect.NewFilesystemClient(c.http, base, large...),
	}
	return c
}

// UseToken sets the key that the client sends from now on, after another client changed the
// guest's key.
func (c *Client) UseToken(token string) { c.auth.token.Store(&token) }

// authorized adds the guest's key to every request.
type authorized struct {
	observed

	rt       http.RoundTripper
	token    atomic.Pointer[string]
	confines atomic.Bool // whether the guest is known to honor confineHeader
}

type limitKey struct{}

// requestKey is the context key of a request with a key of its own.
type requestKey struct{}

// keyFor returns the key that a request sends now.
func (a *authorized) keyFor(ctx context.Context) string {
	if shown, ok := ctx.Value(requestKey{}).(string); ok {
		return shown
	}
	return *a.token.Load()
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, header := r.Context(), r.Header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Set(tokenHeader, a.keyFor(ctx))
	r = r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// The dial may have changed the guest's key, so the key is set when there is a
		// connection.
		GotConn: func(httptrace.GotConnInfo) { header.Set(tokenHeader, a.keyFor(ctx)) },
	}))
	r.Header = header
	if limit, ok := ctx.Value(limitKey{}).(time.Duration); ok {
		header.Set(timeoutHeader, strconv.FormatInt(max(1, limit.Milliseconds()), 10))
	}
	if err := a.admitCommand(r); err != nil {
		return nil, err
	}
	if err := a.confineFiles(r); err != nil {
		return nil, err
	}
	observation := a.beginObservation(r)
	res, err := observation.observeResponse(a.rt.RoundTrip(r))
	if err != nil {
		return nil, err
	}
	if res.Header.Get("Content-Type") == wholeMessage {
		res.Body = readCloser{memory.Metered(res.Body, memory.AccountOf(r.Context()), messageCost), res.Body}
	}
	return checkAnswer(res)
}

const (
	// wholeMessage is the content type of a response that is one message. Others are streams.
	wholeMessage = "application/proto"
	// messageCost is the bytes of memory for each byte of such a response: the body, the read
	// buffer, the message, its converted form and the response to the client.
	messageCost = 10
)

// asUser names the user of a call.
func asUser(header http.Header, user string) {
	if user != "" {
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
}

// InitRequest has the settings that a guest gets at its start.
type InitRequest struct {
	// Env is the environment of every process.
	Env map[string]string
	// User runs processes that do not name a user. Default: root.
	User string
	// WorkDir is where processes start; the guest creates it if missing. Default, and for
	// sandpit.HomeDir: the home of their user.
	WorkDir string
	// Token is the new key, which the client uses from then on. Default: the client's current
	// key.
	Token string
	// Shown is the current key of the guest. Default: the client's current key.
	Shown string
	// Forget makes the guest forget all commands, so that a new user of the sandbox does not
	// see those of an earlier one.
	Forget bool
}

// Init sets the guest's key and defaults. A guest that has a key requires it.
//
// Unavailable: the guest does not listen yet. Unauthenticated: it has another key. Invalid:
// the user does not exist, or WorkDir is not a directory.
func (c *Client) Init(ctx context.Context, req InitRequest) error {
	shown := cmp.Or(req.Shown, *c.auth.token.Load())
	token := cmp.Or(req.Token, shown)
	if req.WorkDir == sandpit.HomeDir {
		req.WorkDir = ""
	}
	body, err := json.Marshal(map[string]any{
		"accessToken": token, "envVars": req.Env, "defaultUser": req.User, "defaultWorkdir": req.WorkDir,
		"forgetCommands": req.Forget,
	})
	if err != nil {
		return err
	}
	ctx = context.WithValue(ctx, requestKey{}, shown)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/init", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := doRequest(c.http, r)
	if err != nil {
		return fmt.Errorf("prepare the guest: %w", err)
	}
	c.auth.token.Store(&token)
	return res.Body.Close()
}

// Env returns the environment of every process.
func (c *Client) Env(ctx context.Context) (map[string]string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/envs", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := doRequest(c.http, r)
	if err != nil {
		return nil, fmt.Errorf("read the environment: %w", err)
	}
	defer res.Body.Close()
	var env map[string]string
	if err := json.NewDecoder(io.LimitReader(res.Body, maxMessage)).Decode(&env); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "read the environment: %w", err)
	}
	return env, nil
}

// AddEnv adds variables to the environment of every later process, and replaces variables of
// the same name.
func (c *Client) AddEnv(ctx context.Context, env map[string]string) error {
	if err := c.changeSettings(ctx, map[string]any{"envVars": env}); err != nil {
		return fmt.Errorf("set the environment: %w", err)
	}
	return nil
}

// SetSecrets implements sandpit.Secreter.
func (c *Client) SetSecrets(ctx context.Context, secrets map[string]string) error {
	if secrets == nil {
		secrets = map[string]string{} // deletes all secrets; null would keep them
	}
	if err := c.changeSettings(ctx, map[string]any{"secrets": secrets}); err != nil {
		return fmt.Errorf("set the secrets: %w", err)
	}
	return nil
}

// changeSettings changes settings of the guest.
func (c *Client) changeSettings(ctx context.Context, settings map[string]any) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/init", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := doRequest(c.http, r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// doRequest sends a plain HTTP request. It returns an error for every status but 2xx and the
// expected ones.
func doRequest(client *http.Client, r *http.Request, expected ...int) (*http.Response, error) {
	res, err := client.Do(r) //nolint:gosec // the round tripper reaches the guest, independent of the address
	if err != nil {
		return nil, transportError(r.Context(), err)
	}
	if res.StatusCode/100 == 2 || slices.Contains(expected, res.StatusCode) {
		return res, nil
	}
	defer res.Body.Close()
	var answer struct {
		Message string `json:"message"`
	}
	data, err := io.ReadAll(res.Body) // bounded by checkAnswer
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err != nil || answer.Message == "" {
		answer.Message = http.StatusText(res.StatusCode)
	}
	if answer.Message == "" {
		answer.Message = "unexpected response of the guest: HTTP " + strconv.Itoa(res.StatusCode)
	}
	return nil, sandpit.Errorf(byCause(statusCode(res.StatusCode), res.Header), "%s", plainText(answer.Message))
}

// Headers of the guest that distinguish two causes of one code of its protocol.
const (
	causeHeader = "Sandpit-Cause"
	causeUser   = "user"
)

// byCause distinguishes an unknown user from a wrong key, for which the protocol has one
// code.
func byCause(code sandpit.Code, header http.Header) sandpit.Code {
	if code == sandpit.Unauthenticated && header.Get(causeHeader) == causeUser {
		return sandpit.Invalid
	}
	return code
}

func statusCode(status int) sandpit.Code {
	switch status {
	case http.StatusBadRequest, http.StatusNotAcceptable:
		return sandpit.Invalid
	case http.StatusUnauthorized:
		return sandpit.Unauthenticated
	case http.StatusForbidden:
		return sandpit.PermissionDenied
	case http.StatusNotFound:
		return sandpit.NotFound
	case http.StatusConflict:
		return sandpit.Conflict
	case http.StatusNotImplemented:
		return sandpit.Unsupported
	case http.StatusInsufficientStorage, http.StatusRequestEntityTooLarge:
		return sandpit.Exhausted
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return sandpit.Unavailable
	}
	return sandpit.Internal
}

// transportError returns the error of a call without a response. It keeps an error of the
// round tripper; any other broken connection means that the sandbox has ended.
func transportError(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*sandpit.Error](err); ok {
		return e
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return sandpit.Errorf(sandpit.Gone, "the sandbox ended: %s", plainText(err.Error()))
}

// callError converts the error of a Connect call. An error that the guest did not send comes
// from a plain HTTP response, such as 401, or from a missing response.
func callError(ctx context.Context, err error) error {
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return transportError(ctx, err)
	}
	switch ce.Code() {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeUnavailable, connect.CodeCanceled,
		connect.CodeInvalidArgument, connect.CodeDeadlineExceeded:
		if !connect.IsWireError(err) {
			return transportError(ctx, err)
		}
	default: // the code follows from the HTTP status
	}
	return sandpit.Errorf(byCause(wireCode(ce.Code()), ce.Meta()), "%s", plainText(ce.Message()))
}

func wireCode(code connect.Code) sandpit.Code {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return sandpit.Invalid
	case connect.CodeUnauthenticated:
		return sandpit.Unauthenticated
	case connect.CodePermissionDenied:
		return sandpit.PermissionDenied
	case connect.CodeNotFound:
		return sandpit.NotFound
	case connect.CodeAlreadyExists:
		return sandpit.AlreadyExists
	case connect.CodeFailedPrecondition, connect.CodeAborted:
		return sandpit.Conflict
	case connect.CodeResourceExhausted:
		return sandpit.Exhausted
	case connect.CodeUnimplemented:
		return sandpit.Unsupported
	case connect.CodeUnavailable:
		return sandpit.Unavailable
	case connect.CodeDeadlineExceeded:
		return sandpit.Timeout
	case connect.CodeCanceled:
		return sandpit.Canceled
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
		return sandpit.Internal
	}
	return sandpit.Internal
}
