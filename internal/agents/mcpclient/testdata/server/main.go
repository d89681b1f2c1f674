// Command server is an MCP server for tests: by its input and output, or by HTTP at the
// address that its argument names, at /mcp and, with server-sent events, at /sse.
package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	s := newServer()
	if len(os.Args) < 2 {
		if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			log.Print(err)
		}
		return
	}
	get := func(*http.Request) *mcp.Server { return s }
	mux := http.NewServeMux()
	mux.Handle("/mcp", guarded(mcp.NewStreamableHTTPHandler(get, nil)))
	mux.Handle("/sse", guarded(mcp.NewSSEHandler(get, nil)))
	// What is asked of another host name must not come from clients of this one.
	_, port, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var stolen atomic.Int32
	other := "http://localhost:" + port + "/steal"
	mux.HandleFunc("/steal", func(http.ResponseWriter, *http.Request) { stolen.Add(1) })
	mux.HandleFunc("/stolen", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "stolen: %d", stolen.Load()) })
	mux.Handle("/away", http.RedirectHandler(other, http.StatusTemporaryRedirect))
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: endpoint\ndata: %s\n\n", other)
	})
	ln, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	log.Fatal(http.Serve(ln, mux))
}

// guarded wants a header.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer open-sesame-1234" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

type nothing struct{}

func newServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "kinds", Description: "all kinds of content"}, kinds)
	mcp.AddTool(s, &mcp.Tool{Name: "change"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		mcp.AddTool(s, &mcp.Tool{Name: "new tool"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
			return text("I am new"), nil, nil
		})
		return text("changed"), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "fail"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return nil, nil, fmt.Errorf("out of luck")
	})
	mcp.AddTool(s, &mcp.Tool{Name: "environment"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return text(fmt.Sprintf("key %s, session's %s, uid %d", os.Getenv("API_KEY"), os.Getenv("FROM_SESSION"), os.Getuid())), nil, nil
	})
	return s
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func kinds(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{
		Content: []mcp.Content{
			&mcp.TextContent{Text: "some text"},
			&mcp.ImageContent{MIMEType: "image/png", Data: picture(4)},
			&mcp.ImageContent{MIMEType: "image/png", Data: []byte("<script>not a picture</script>")},
			&mcp.ImageContent{MIMEType: "image/png", Data: picture(9000)},
			&mcp.AudioContent{MIMEType: "audio/wav", Data: []byte("RIFF....")},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://a", MIMEType: "text/plain", Text: "resource text"}},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://b", MIMEType: "application/zip", Blob: []byte("PK")}},
			&mcp.ResourceLink{URI: "test://c", Name: "a link", MIMEType: "text/html"},
		},
		StructuredContent: map[string]any{"answer": 42},
	}, nil, nil
}

// picture is a line of a width.
func picture(width int) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, 1))); err != nil {
		log.Fatal(err)
	}
	return b.Bytes()
}
