package tool

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

func webTools() []Tool {
	return []Tool{{
		Name: "http_request", Title: "Send an HTTP request", Category: Web, Hints: Hints{Destructive: true, OpenWorld: true},
		Description: "Send an HTTP request from the sandbox, as far as its network policy allows.",
		function:    newFunction(httpRequest), synonyms: map[string]string{"body": "data"},
	}}
}

type httpInput struct {
	URL     string            `json:"url" jsonschema:"URL, http:// or https://"`
	Method  string            `json:"method,omitempty" jsonschema:"request method" default:"GET"`
	Headers map[string]string `json:"headers,omitempty" jsonschema:"headers to send"`
	Data    string            `json:"data,omitempty" jsonschema:"request body"`
	Params  map[string]string `json:"params,omitempty" jsonschema:"query parameters to add"`
	Timeout float64           `json:"timeout,omitempty" jsonschema:"seconds for the whole request" default:"30" range:"0,600"`
}

type httpData struct {
	Success bool              `json:"success"`
	Status  int               `json:"status_code"`
	Headers map[string]string `json:"headers"`
	Content string            `json:"content"`
	// Encoding is base64 for a body that is not text.
	Encoding string `json:"encoding"`
	URL      string `json:"url"`
	Cut      bool   `json:"truncated,omitempty"`
}

func httpRequest(ctx context.Context, s *Session, in httpInput) (Result, error) {
	answer, err := callApplet[applet.FetchResult](ctx, s, applet.Fetch, applet.FetchRequest{
		URL: in.URL, Method: in.Method, Headers: in.Headers, Params: in.Params, Body: []byte(in.Data), Timeout: in.Timeout,
	})
	if err != nil {
		return Result{}, err
	}
	data := httpData{
		Success: answer.Status < 400, Status: answer.Status, Headers: answer.Headers, URL: answer.URL, Cut: answer.More, Encoding: "utf-8",
	}
	content := string(answer.Body)
	if !answer.Text {
		data.Encoding, content = "base64", base64.StdEncoding.EncodeToString(answer.Body)
	}
	content = s.secretSet().maskCut(content, false, answer.More)
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", answer.Status, answer.URL)
	for _, name := range slices.Sorted(maps.Keys(answer.Headers)) {
		fmt.Fprintf(&b, "%s: %s\n", name, answer.Headers[name])
	}
	if !answer.Text {
		b.WriteString("\n[BASE64]")
	}
	fmt.Fprintf(&b, "\n%s", content)
	if answer.More {
		b.WriteString("\n(truncated)")
	}
	data.Content = s.secretSet().truncateText(content)
	return Result{Text: b.String(), Data: data, Failed: !data.Success}, nil
}
