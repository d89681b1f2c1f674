package applet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// Fetch is the applet that makes one HTTP request from inside the sandbox: the sandbox's network rules and the
// image's certificates apply.
const Fetch = "fetch"

// FetchRequest describes the HTTP request.
type FetchRequest struct {
	// URL is http or https. Params are added to its query.
	URL    string            `json:"url"`
	Params map[string]string `json:"params,omitempty"`
	// Method is GET by default.
	Method  string            `json:"method,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    []byte            `json:"body,omitempty"`
	// Timeout bounds the whole request, in seconds. Default: 30; at most 600.
	Timeout float64 `json:"timeout,omitempty"`
	// MaxBody is how much of the response's body is returned, in bytes. Default: 1 MiB; at most 10 MiB.
	MaxBody int `json:"max_body,omitempty"`
}

// FetchResult is the response.
type FetchResult struct {
	Status int `json:"status"`
	// URL is the final URL, after redirects.
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	// Body is only the beginning of the body if More is true.
	Body []byte `json:"body"`
	More bool   `json:"more,omitempty"`
	Text bool   `json:"text"` // Body is UTF-8
}

const (
	defaultFetch = 30
	maxFetch     = 600
	defaultBody  = 1 << 20
	maxBody      = 10 << 20
	maxRedirects = 10
	// maxHeaders and maxHeader bound the headers that are returned.
	maxHeaders = 100
	maxHeader  = 4096
)

func fetchURL(ctx context.Context, r FetchRequest) (FetchResult, error) {
	req, err := r.toHTTP()
	if err != nil {
		return FetchResult{}, err
	}
	seconds := min(r.Timeout, maxFetch)
	if seconds <= 0 {
		seconds = defaultFetch
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
	defer cancel()
	client := &http.Client{CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return sandpit.Errorf(sandpit.Exhausted, "more than %d redirects", maxRedirects)
		}
		return nil
	}}
	answer, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return FetchResult{}, fetchError(err, seconds)
	}
	defer answer.Body.Close()
	limit := min(r.MaxBody, maxBody)
	if limit <= 0 {
		limit = defaultBody
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, int64(limit)+1))
	if err != nil {
		return FetchResult{}, fetchError(err, seconds)
	}
	more := len(body) > limit
	body = body[:min(len(body), limit)]
	return FetchResult{
		Status: answer.StatusCode, URL: answer.Request.URL.Redacted(), Headers: headersOf(answer.Header),
		Body: body, More: more, Text: isText(body, more),
	}, nil
}

func (r FetchRequest) toHTTP() (*http.Request, error) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "url %.200q: want http:// or https:// and a host", u.Redacted())
	}
	if len(r.Params) > 0 {
		q := u.Query()
		for name, value := range r.Params {
			q.Set(name, value)
		}
		u.RawQuery = q.Encode()
	}
	req, err := http.NewRequest(strings.ToUpper(r.Method), u.String(), strings.NewReader(string(r.Body))) //nolint:noctx // given by the caller
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "request: %w", err)
	}
	req.Header.Set("User-Agent", "sandpit")
	for name, value := range r.Headers {
		if strings.EqualFold(name, "Host") {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	return req, nil
}

// fetchError gives an error a code and a text that a caller can act on.
func fetchError(err error, seconds float64) error {
	var lookup *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return sandpit.Errorf(sandpit.Timeout, "no complete answer within %g s: %w", seconds, err)
	case errors.As(err, &lookup):
		return sandpit.Errorf(sandpit.Unavailable, "the sandbox cannot find the host %.200q: it has no network, its rules forbid it, or the host does not exist: %w", lookup.Name, err)
	case sandpit.CodeOf(err) != sandpit.Internal:
		return err
	}
	return sandpit.Errorf(sandpit.Unavailable, "%w", err)
}

func headersOf(h http.Header) map[string]string {
	headers := make(map[string]string)
	for name, values := range h {
		if len(headers) == maxHeaders {
			break
		}
		value := strings.ToValidUTF8(strings.Join(values, ", "), "?")
		headers[name] = value[:min(len(value), maxHeader)]
	}
	return headers
}

// isText reports whether body is UTF-8. A cut body may end within a character.
func isText(body []byte, cut bool) bool {
	for i := 0; cut && i < utf8.UTFMax && len(body) > 0 && !utf8.Valid(body); i++ {
		body = body[:len(body)-1]
	}
	return utf8.Valid(body)
}
