package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// toolbox calls the toolbox API of sandboxes.
type toolbox struct {
	header http.Header
	secure bool // the control API is encrypted, so the toolbox must be, too
	http   http.RoundTripper
	own    *http.Transport // nil if Options has the transport
}

func newToolbox(o Options) toolbox {
	t := toolbox{header: o.header(), secure: strings.HasPrefix(o.Endpoint, "https://"), http: o.Transport}
	if t.http == nil {
		t.own = defaultTransport()
		t.http = t.own
	}
	return t
}

func (t toolbox) closeIdle() {
	if t.own != nil {
		t.own.CloseIdleConnections()
	}
}

// checkURL checks the URL of a toolbox, which receives the API key.
func (t toolbox) checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" {
		return sandpit.Errorf(sandpit.Internal, "Daytona reports the invalid toolbox URL %.200q", text)
	}
	if t.secure && u.Scheme != "https" {
		return sandpit.Errorf(sandpit.PermissionDenied, "Daytona reports the toolbox URL %.200q: the API key is not sent without encryption", text)
	}
	return nil
}

// maxAnswer bounds a response of the toolbox that is read as a whole, in bytes.
const maxAnswer = 32 << 20

// toolboxError is an error that a toolbox returned.
type toolboxError struct {
	status  int
	code    string // of Daytona
	message string
}

// Error implements error.
func (e *toolboxError) Error() string { return e.message }

// notRunning reports whether the error says that the sandbox does not run.
func (e *toolboxError) notRunning() bool {
	return e.status == http.StatusBadGateway || e.status == http.StatusBadRequest && containsAny(strings.ToLower(e.message), "is the sandbox started", "no ip address found")
}

// code returns the code of an error of the toolbox.
func (e *toolboxError) toCode() sandpit.Code {
	switch e.status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return sandpit.Invalid
	case http.StatusUnauthorized:
		return sandpit.Unauthenticated
	case http.StatusForbidden:
		return sandpit.PermissionDenied
	case http.StatusNotFound:
		return sandpit.NotFound
	case http.StatusRequestTimeout:
		return sandpit.Timeout
	case http.StatusConflict:
		return sandpit.Conflict
	case http.StatusGone:
		return sandpit.Gone
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return sandpit.Exhausted
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return sandpit.Unsupported
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return sandpit.Unavailable
	}
	return sandpit.Internal
}

// toolCall is a call of a toolbox.
type toolCall struct {
	method, path string
	query        url.Values
	body         io.Reader
	contentType  string
}

// jsonCall returns a POST with a JSON body.
func jsonCall(path string, body any) (toolCall, error) {
	data, err := json.Marshal(body)
	return toolCall{method: http.MethodPost, path: path, body: bytes.NewReader(data), contentType: "application/json"}, err
}

// newRequest returns a request to the toolbox of a sandbox.
func (b *sandbox) newRequest(ctx context.Context, c toolCall) (*http.Request, error) {
	base, err := b.toolboxURL(ctx)
	if err != nil {
		return nil, err
	}
	target := base + c.path
	if len(c.query) > 0 {
		target += "?" + c.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, c.method, target, c.body) //nolint:gosec // the API names the host
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "%w", err)
	}
	r.Header = b.p.toolbox.header.Clone()
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	return r, nil
}

// send sends a request to the toolbox of a sandbox that runs. The caller closes the body of the
// response.
//
// Conflict, Gone: the sandbox does not run. Unavailable: the toolbox cannot be reached. Another
// status than 2xx and 101 is a *toolboxError with a code.
func (b *sandbox) send(ctx context.Context, c toolCall) (*http.Response, error) {
	if err := b.checkUsable(ctx); err != nil {
		return nil, err
	}
	r, err := b.newRequest(ctx, c)
	if err != nil {
		return nil, err
	}
	res, err := b.p.toolbox.http.RoundTrip(r)
	if err != nil {
		return nil, b.explainFailure(ctx, err)
	}
	if res.StatusCode/100 == 2 || res.StatusCode == http.StatusSwitchingProtocols {
		return res, nil
	}
	return nil, b.statusError(ctx, res)
}

// statusError returns the error in a response of the toolbox, and closes its body.
func (b *sandbox) statusError(ctx context.Context, res *http.Response) error {
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		return b.explainFailure(ctx, err)
	}
	e := &toolboxError{status: res.StatusCode}
	var answer struct {
		Message string `json:"message"`
		Error   string `json:"error"`
		Code    string `json:"code"`
	}
	if json.Unmarshal(data, &answer) == nil {
		e.message, e.code = answer.Message, cleanText(answer.Code)
		if e.message == "" {
			e.message = answer.Error
		}
	} else if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("<")) {
		e.message = string(data)
	}
	if e.message = cleanText(e.message); e.message == "" {
		e.message = fmt.Sprintf("HTTP %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	}
	if e.notRunning() || e.status == http.StatusNotFound {
		if err := b.checkFresh(ctx); err != nil {
			return err
		}
	}
	if e.status == http.StatusUnauthorized {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "Daytona rejects the API key: %w", e), keyHint)
	}
	return sandpit.Errorf(e.toCode(), "%w", e)
}

// readJSON sends a call and decodes the response.
func (b *sandbox) readJSON(ctx context.Context, c toolCall, into any) error {
	res, err := b.send(ctx, c)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return b.explainFailure(ctx, err)
	case len(data) > maxAnswer:
		return sandpit.Errorf(sandpit.Exhausted, "the response of the toolbox has more than %d MiB", maxAnswer>>20)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return sandpit.Errorf(sandpit.Internal, "invalid response of the toolbox: %w", err)
	}
	return nil
}

// executed is the result of a script: both outputs together.
type executed struct {
	ExitCode int    `json:"exitCode"`
	Result   string `json:"result"`
}

// execute runs a script in the toolbox's shell, as the toolbox's user.
func (b *sandbox) execute(ctx context.Context, script string, limit time.Duration) (out executed, err error) {
	c, err := jsonCall("/process/execute", map[string]any{"command": script, "timeout": int(limit / time.Second)})
	if err != nil {
		return out, err
	}
	limited, cancel := context.WithTimeout(ctx, limit+b.p.o.CallTimeout)
	defer cancel()
	return out, b.readJSON(limited, c, &out)
}

// upload writes a file through the toolbox, as its user.
func (b *sandbox) upload(ctx context.Context, path string, content io.Reader) error {
	body, form := io.Pipe()
	w := multipart.NewWriter(form)
	source := &recordedReader{from: content}
	go func() {
		err := w.WriteField("files[0].path", path)
		if err == nil {
			var part io.Writer
			if part, err = w.CreateFormFile("files[0].file", "file"); err == nil {
				_, err = io.Copy(part, source)
			}
		}
		if err == nil {
			err = w.Close()
		}
		form.CloseWithError(err) // the request fails with it
	}()
	// The transport waits for a pending read of the body, even when ctx has ended.
	unlink := context.AfterFunc(ctx, func() { _ = form.CloseWithError(ctx.Err()) }) // never fails
	defer unlink()
	res, err := b.send(ctx, toolCall{method: http.MethodPost, path: "/files/bulk-upload", body: body, contentType: w.FormDataContentType()})
	_ = body.Close() // ends the goroutine if the request was not sent
	if failed := source.failure(); failed != nil && ctx.Err() == nil {
		err = failed // the request failed because of it
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	return errors.Join(err, res.Body.Close())
}

// recordedReader is a reader that remembers its error.
type recordedReader struct {
	from io.Reader

	mu  sync.Mutex
	err error
}

// Read implements io.Reader.
func (r *recordedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}
	return n, err
}

// failure returns the error of the reader, or nil.
func (r *recordedReader) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// toolboxURL returns the URL of the sandbox's toolbox.
func (b *sandbox) toolboxURL(ctx context.Context) (string, error) {
	b.mu.Lock()
	base := b.base
	b.mu.Unlock()
	if base == "" {
		var answer struct {
			URL string `json:"url"`
		}
		if err := b.p.control.getInto(ctx, "get the toolbox URL", sandboxPath(b.ref, "toolbox-proxy-url"), &answer); err != nil {
			return "", asGone(err)
		}
		base = strings.TrimSuffix(answer.URL, "/")
		if err := b.p.toolbox.checkURL(base); err != nil {
			return "", err
		}
		b.mu.Lock()
		b.base = base
		b.mu.Unlock()
	}
	return base + "/" + url.PathEscape(b.ref), nil
}

// proxyPath returns the path of the toolbox that forwards requests to a port.
func proxyPath(port int, path string) string {
	return "/proxy/" + strconv.Itoa(port) + "/" + strings.TrimPrefix(path, "/")
}
