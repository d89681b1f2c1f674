package preview_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestAnswerBeforeTheEnd has a program answer without reading what is sent to it, as one does
// whose disk is full. A client that sends all before reading must get the answer, and not a broken
// connection.
func TestAnswerBeforeTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // else the server reads some of it first
		w.WriteHeader(http.StatusInsufficientStorage)
		_, _ = io.WriteString(w, "full")
	})
	id := r.box()
	r.public(id, port)
	const size = 32 << 20
	for range 5 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.main)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		head := fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: %d-%s.localhost\r\nContent-Length: %d\r\n\r\n", port, id, size)
		if _, err := io.Copy(conn, io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size))); err != nil {
			t.Errorf("send: %v", err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("read the answer: %v", err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusInsufficientStorage || string(text) != "full" || err != nil || !res.Close {
			t.Errorf("%d %q, %v, to be closed: %v", res.StatusCode, text, err, res.Close)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
