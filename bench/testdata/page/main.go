// Command page is the program whose previews are measured: a page, and a WebSocket that echoes
// messages.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/coder/websocket"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a page") })
	http.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // the client got the error
		}
		defer conn.CloseNow()
		for {
			kind, text, err := conn.Read(context.Background())
			if err != nil || conn.Write(context.Background(), kind, text) != nil {
				return
			}
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[1], nil))
}
