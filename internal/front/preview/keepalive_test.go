package preview_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
)

// TestKeepAlive makes requests one after the other: they share a connection, whatever they
// send, if the program reads it before it answers.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		_, _ = w.Write(body)
	})
	id := r.box()
	r.public(id, port)
	c := r.client(false)
	for _, base := range []string{r.hostURL(id, port), r.pathURL(id, port)} {
		connections := 0
		for i, body := range []string{"", "x", strings.Repeat("y", 1<<20), ""} {
			method, reader := http.MethodGet, io.Reader(nil)
			if body != "" {
				method, reader = http.MethodPost, strings.NewReader(body)
			}
			req := request(t, method, fmt.Sprintf("%s/%d", base, i), reader)
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
				if !info.Reused {
					connections++
				}
			}}))
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.Close || res.StatusCode != http.StatusOK {
				t.Errorf("%s %s with %d bytes: status %d, the connection is closed: %v", method, req.URL, len(body), res.StatusCode, res.Close)
			}
		}
		if connections != 1 {
			t.Errorf("%s: %d connections, want 1", base, connections)
		}
	}
}

// TestKeepAliveWrapped does so behind a handler that wraps bodies, also those of requests
// that have none.
func TestKeepAliveWrapped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	r.public(id, port)
	previews := r.gateway.Paths()
	address, stop := listen(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.Body = struct{ io.ReadCloser }{req.Body}
		previews.ServeHTTP(w, req)
	}))
	defer stop()
	res, err := r.client(false).Do(request(t, http.MethodGet, fmt.Sprintf("http://%s/p/%s/%d/", address, id, port), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Close || res.StatusCode != http.StatusOK {
		t.Errorf("status %d, the connection is closed: %v", res.StatusCode, res.Close)
	}
}
