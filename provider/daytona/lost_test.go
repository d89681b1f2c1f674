package daytona_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// forgetful sends requests to start and stop a sandbox, and loses their responses.
type forgetful struct {
	http.RoundTripper

	mu   sync.Mutex
	lost map[string]int
}

// RoundTrip implements http.RoundTripper. It sends a stop twice, and returns the second response.
func (f *forgetful) RoundTrip(r *http.Request) (*http.Response, error) {
	operation := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	res, err := f.RoundTripper.RoundTrip(r)
	if err != nil || r.Method != http.MethodPost || operation != "start" && operation != "stop" {
		return res, err
	}
	f.mu.Lock()
	f.lost[operation]++
	f.mu.Unlock()
	if operation == "stop" {
		if err := res.Body.Close(); err != nil {
			return nil, err
		}
		return f.RoundTripper.RoundTrip(r)
	}
	text := []byte("<html>gateway")
	res.Body, res.ContentLength = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(text), res.Body}, int64(len(text))
	return res, nil
}

// TestLostResponses stops and starts a sandbox through a network that loses the responses.
func TestLostResponses(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options(t)
	f := &forgetful{RoundTripper: newCloudNetwork(t), lost: make(map[string]int)}
	o.Transport = f
	box := create(t, open(t, o), sandpit.Spec{})
	if err := box.Stop(within(t)); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := box.Start(within(t)); err != nil {
		t.Errorf("start: %v", err)
	}
	if got := shell(t, box, "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	if f.lost["stop"] != 1 || f.lost["start"] != 1 {
		t.Errorf("lost responses: %v, want one of each", f.lost)
	}
}
