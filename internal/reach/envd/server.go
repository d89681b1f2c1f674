package envd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// keyHeaders are the headers in which a guest accepts a key, or proof of one.
var keyHeaders = []string{tokenHeader, "X-Api-Key", "Cookie"}

// HTTP implements sandpit.GuestServer.
func (c *Client) HTTP() http.RoundTripper { return server{c.auth} }

// server forwards requests to the guest.
type server struct{ guest *authorized }

// RoundTrip implements http.RoundTripper.
func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	clean := path.Clean("/" + r.URL.Path)
	if isInit(clean) {
		if r.Body != nil {
			_ = r.Body.Close() // as every round tripper does
		}
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "%s: the caller must not set the guest's key", clean)
	}
	r = r.Clone(r.Context())
	r.URL = &url.URL{Scheme: "http", Host: strings.TrimPrefix(base, "http://"), Path: clean, RawQuery: r.URL.RawQuery}
	r.Host = ""
	for _, name := range keyHeaders {
		r.Header.Del(name)
	}
	res, err := s.guest.RoundTrip(r)
	if err != nil {
		return nil, transportError(r.Context(), err)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/connect+") {
		res.Body = &connectStream{ReadCloser: res.Body, ctx: r.Context()}
	}
	return res, nil
}

// connectStream is a stream of Connect's protocol. If the guest stops in the middle of it, the
// stream ends with the protocol's own error message, so that the client learns more than
// that a connection broke.
type connectStream struct {
	io.ReadCloser

	ctx    context.Context //nolint:containedctx // the request's
	frames liveness.Frames
	last   []byte // the unread rest of the error message
	over   bool
}

// Read implements io.Reader.
func (s *connectStream) Read(p []byte) (int, error) {
	if !s.over {
		n, err := s.ReadCloser.Read(p)
		s.frames.Pass(p[:n])
		known, ok := errors.AsType[*sandpit.Error](err)
		if !ok || known.Code == sandpit.Gone || s.ctx.Err() != nil || !s.frames.Between() {
			return n, err
		}
		s.over, s.last = true, endOfStream(known)
		return n, nil
	}
	if len(s.last) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.last)
	s.last = s.last[n:]
	return n, nil
}

// endOfStream returns the last message of a stream that failed.
func endOfStream(err *sandpit.Error) []byte {
	const flagEnd = 2
	text := err.Error()
	if hint := sandpit.HintOf(err); hint != "" {
		text += "; " + hint
	}
	var end struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	end.Error.Code, end.Error.Message = connect.CodeUnavailable.String(), text
	data, jsonErr := json.Marshal(end)
	if jsonErr != nil {
		data = []byte("{}") // strings can always be encoded
	}
	return append(binary.BigEndian.AppendUint32([]byte{flagEnd}, uint32(len(data))), data...) //nolint:gosec // some hundred bytes
}

// isInit reports whether a guest that parses paths loosely could take a path for the call
// that sets its key.
func isInit(clean string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(clean, "/"), "/")
	return strings.EqualFold(strings.TrimSpace(first), "init")
}
