package data

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// guestMethods are the methods of the guest's protocol.
var guestMethods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
}

// forwardToGuest forwards a request to the guest with the guest's key.
func (s *Server) forwardToGuest(ctx context.Context, c *call) error {
	server, ok := sandpit.As[sandpit.GuestServer](c.guest)
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "the provider of sandbox %s has no guest protocol", c.id)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also if the guest would still read or write
	// A guest may respond while it still reads, and fail early.
	c.w.enableFullDuplex(c.r)
	defer c.w.body.endReads()
	out, err := http.NewRequestWithContext(ctx, c.r.Method, "http://guest/", c.w.body)
	if err != nil {
		return err
	}
	out.URL = &url.URL{Scheme: "http", Host: "guest", Path: "/" + c.r.PathValue("path"), RawQuery: c.r.URL.RawQuery}
	if out.ContentLength = c.r.ContentLength; out.ContentLength == 0 {
		out.Body = http.NoBody
	}
	copyHeaders(out.Header, c.r.Header, requestHeaders, requestPrefixes)
	if err := s.limitCommand(out.Header); err != nil {
		return err
	}
	if user := guestUserHeader(c.r.Header.Get("Authorization")); user != "" {
		out.Header.Set("Authorization", user)
	}
	if len(out.Header["User-Agent"]) == 0 {
		out.Header["User-Agent"] = nil // otherwise Go sets its own
	}
	res, err := server.HTTP().RoundTrip(out)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return c.writeGuestResponse(res)
}

// limitCommand sets the server's timeout of a command if the client asks for it.
func (s *Server) limitCommand(h http.Header) error {
	switch wanted := h.Get(wire.HeaderCommandTimeout); {
	case wanted == "":
	case wanted != wire.DefaultCommandTimeout:
		return sandpit.Errorf(sandpit.Invalid, "header %s: invalid value %.80q: want %q", wire.HeaderCommandTimeout, wanted, wire.DefaultCommandTimeout)
	default:
		h.Del(wire.HeaderCommandTimeout)
		h.Set("Connect-Timeout-Ms", strconv.FormatInt(max(1, s.o.Timeout.Milliseconds()), 10))
	}
	return nil
}

// writeGuestResponse responds with the response of a guest.
func (c *call) writeGuestResponse(res *http.Response) error {
	switch {
	case res.StatusCode < 200 || res.StatusCode > 599,
		res.StatusCode/100 == 3 && res.StatusCode != http.StatusNotModified: // redirects of a guest are not followed
		return sandpit.Errorf(sandpit.Internal, "unexpected status %d from the guest", res.StatusCode)
	}
	h := c.w.Header()
	copyHeaders(h, res.Header, responseHeaders, responsePrefixes)
	setSafeHeaders(h)
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	if res.StatusCode/100 != 2 && c.r.Method != http.MethodHead {
		h.Del("Content-Length") // the body may be cut
	}
	c.w.WriteHeader(res.StatusCode)
	if err := c.w.flushResponse(); err != nil {
		return err
	}
	if _, err := c.w.ReadFrom(res.Body); err != nil {
		return err
	}
	trailer := make(http.Header)
	copyHeaders(trailer, res.Trailer, nil, responsePrefixes)
	for name, values := range trailer {
		if len(values) > 0 { // a trailer that is only announced would keep a stream of HTTP/2 open
			h[http.TrailerPrefix+name] = values
		}
	}
	return nil
}
