package testserver

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Request is a request of a test.
type Request struct {
	Method, URL, Body string
	// Header has one value for each name.
	Header map[string]string
	// Client sends the request. Default: http.DefaultClient.
	Client *http.Client
}

// Send sends the request on a connection of its own, and returns the status and the body of the
// response. It may be called while a test ends.
func (r Request) Send(tb testing.TB) (status int, body []byte) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, strings.NewReader(r.Body))
	if err != nil {
		tb.Fatal(err)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	req.Close = true
	client := r.Client
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		tb.Fatal(err)
	}
	return res.StatusCode, body
}
