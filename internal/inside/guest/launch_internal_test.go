package guest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// TestAwaitKey checks that a launch finds a guest that is slow, and takes no other program for it.
func TestAwaitKey(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			time.Sleep(1200 * time.Millisecond) // longer than one question waits
		}
		if r.Header.Get(TokenHeader) != "key" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	if !awaitKey(port, "key") {
		t.Error("a slow guest is not found")
	}
	if awaitKey(port, "another key") {
		t.Error("a guest with another key is taken")
	}
	server.Close()
	if awaitKey(port, "key") {
		t.Error("a guest is found on a closed port")
	}
}
