package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// pageTimeout bounds the response of a page, loadTimeout the loading after an action, and
	// reactDelay is how long Settle waits for an action to start loading. If the browser has not handled
	// the action by then, Settle waits up to reactTimeout more.
	pageTimeout  = 20 * time.Second
	loadTimeout  = 10 * time.Second
	reactDelay   = 150 * time.Millisecond
	reactTimeout = 2 * time.Second
	// scriptWorld is the name of the isolated world of page.js.
	scriptWorld = "sandpit"
)

//go:embed page.js
var pageScript string

// callPage calls a method of the page.
//
// Timeout: it does not respond, and is closed. Unavailable: it has ended.
func (t *Tab) callPage(ctx context.Context, method string, params any) (json.RawMessage, error) {
	return t.callPageWithin(ctx, pageTimeout, method, params)
}

func (t *Tab) callPageWithin(ctx context.Context, limit time.Duration, method string, params any) (json.RawMessage, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.callOpen(limited, method, params)
	if errors.Is(err, context.DeadlineExceeded) {
		t.closeUnresponsive()
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "the page did not respond within %s and was closed", limit), "open another page")
	}
	return raw, err
}

// callOpen calls a method of the page, if it is open.
func (t *Tab) callOpen(ctx context.Context, method string, params any) (json.RawMessage, error) {
	t.b.mu.Lock()
	closed := t.closed
	t.b.mu.Unlock()
	if closed != nil {
		return nil, closed
	}
	return t.b.conn.call(ctx, t.session, method, params)
}

// closeUnresponsive closes a page that does not respond.
func (t *Tab) closeUnresponsive() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.b.dropTab(t, sandpit.Errorf(sandpit.Unavailable, "the page has been closed"))
	t.b.conn.callAsync("", "Target.closeTarget", object{"targetId": t.target})
}

// Navigate opens a URL and waits up to limit until the page has loaded. It returns false if the page
// is still loading.
//
// Unavailable: the server cannot be reached. Timeout: no response within limit. Unsupported: the
// URL is a download.
func (t *Tab) Navigate(ctx context.Context, address string, limit time.Duration) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.callOpen(limited, "Page.navigate", object{"url": address})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		t.b.conn.callAsync(t.session, "Page.stopLoading", nil)
		return false, sandpit.Errorf(sandpit.Timeout, "%s did not respond within %s", urlHost(address), limit)
	}
	if refused, ok := errors.AsType[*protocolError](err); ok {
		return false, sandpit.Errorf(sandpit.Invalid, "the browser cannot open this address: %w", refused)
	}
	if err != nil {
		return false, err
	}
	var came struct {
		Error    string `json:"errorText"`
		Download bool   `json:"isDownload"`
	}
	if err := json.Unmarshal(raw, &came); err != nil {
		return false, sandpit.Errorf(sandpit.Internal, "decode the browser's response: %w", err)
	}
	if came.Download {
		return false, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the address is a download, which the browser does not support"), "fetch it with http_request or curl")
	}
	if came.Error != "" {
		return false, sandpit.Errorf(sandpit.Unavailable, "open %s: %s", urlHost(address), truncate(came.Error, 100))
	}
	return t.waitLoaded(limited, ctx)
}

// urlHost returns the host of an address for an error, without secrets in the address.
func urlHost(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "the page"
	}
	return u.Host
}

// waitLoaded waits for the end of loading until limited ends. It returns false if the page is still
// loading.
func (t *Tab) waitLoaded(limited, ctx context.Context) (bool, error) {
	var closed error
	err := t.b.waitUntil(limited, func() bool {
		closed = t.closed
		return !t.loading || closed != nil
	})
	if closed != nil {
		return false, closed
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// Settle waits until the page has reacted to an action: until the browser has handled it, and then
// while the page loads, up to loadTimeout.
func (t *Tab) Settle(ctx context.Context) error {
	select {
	case <-time.After(reactDelay):
	case <-ctx.Done():
		return ctx.Err()
	}
	t.awaitHandling(ctx)
	limited, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	_, err := t.waitLoaded(limited, ctx)
	return err
}

// awaitHandling waits until the page has handled its earlier input, and the browser what the page has
// asked of it, such as to load another page: on a busy machine that takes long. It ignores errors,
// because the page may be gone by then.
func (t *Tab) awaitHandling(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, reactTimeout)
	defer cancel()
	_, _ = t.callOpen(limited, "Runtime.evaluate", object{"expression": "new Promise(done => setTimeout(done))", "awaitPromise": true})
	_, _ = t.callOpen(limited, "Page.getNavigationHistory", nil)
}

// Back goes to the previous (-1) or next (1) page in the history. Conflict: no such page.
func (t *Tab) Back(ctx context.Context, step int) error {
	raw, err := t.callPage(ctx, "Page.getNavigationHistory", nil)
	if err != nil {
		return err
	}
	var history struct {
		Current int `json:"currentIndex"`
		Entries []struct {
			ID int `json:"id"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(raw, &history); err != nil {
		return sandpit.Errorf(sandpit.Internal, "decode the browser's history: %w", err)
	}
	at := history.Current + step
	if at < 0 || at >= len(history.Entries) {
		return sandpit.Errorf(sandpit.Conflict, "the history has no such page")
	}
	if _, err := t.callPage(ctx, "Page.navigateToHistoryEntry", object{"entryId": history.Entries[at].ID}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// Reload reloads the page.
func (t *Tab) Reload(ctx context.Context) error {
	if _, err := t.callPage(ctx, "Page.reload", nil); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// remoteValue is a JavaScript value of the page.
type remoteValue struct {
	Type        string          `json:"type"`
	Value       json.RawMessage `json:"value"`
	Literal     string          `json:"unserializableValue"` // NaN, -0, 12n and the like
	Description string          `json:"description"`
}

type evaluation struct {
	Result    remoteValue `json:"result"`
	Exception *struct {
		Text      string      `json:"text"`
		Exception remoteValue `json:"exception"`
	} `json:"exceptionDetails"`
}

func (e evaluation) thrownText() string {
	text := e.Exception.Exception.Description
	if text == "" {
		text = e.Exception.Text + " " + string(e.Exception.Exception.Value)
	}
	return text
}

// Value is the value of an expression.
type Value struct {
	// JSON is the value, "" for undefined and values that JSON cannot represent.
	JSON json.RawMessage
	// Text is the value as text, or the exception.
	Text   string
	Thrown bool
}

// codeStopped is the browser's error code for an expression that timed out: "internal error".
const codeStopped = -32603

// Evaluate evaluates an expression in the page and awaits a promise. The result is untrusted data
// of the page.
//
// Timeout: it took longer than limit, and was stopped. Exhausted: the value is too large.
// Unsupported: JSON cannot represent the value, for example an element.
func (t *Tab) Evaluate(ctx context.Context, expression string, limit time.Duration) (Value, error) {
	raw, err := t.callPageWithin(ctx, limit+pageTimeout/4, "Runtime.evaluate", object{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true, "replMode": true, "timeout": limit.Milliseconds(),
	})
	refused, ok := errors.AsType[*protocolError](err)
	if ok && refused.Code == codeStopped {
		return Value{}, sandpit.Errorf(sandpit.Timeout, "the expression took longer than %s and was stopped", limit)
	}
	if ok {
		return Value{}, sandpit.Errorf(sandpit.Unsupported, "the value cannot be returned as JSON: %w", refused)
	}
	if err != nil {
		return Value{}, err
	}
	var e evaluation
	if err := json.Unmarshal(raw, &e); err != nil {
		return Value{}, sandpit.Errorf(sandpit.Internal, "decode the browser's response: %w", err)
	}
	if e.Exception != nil {
		return Value{Text: e.thrownText(), Thrown: true}, nil
	}
	v := Value{JSON: e.Result.Value, Text: string(e.Result.Value)}
	var text string
	switch {
	case json.Unmarshal(v.JSON, &text) == nil:
		v.Text = text
	case len(v.JSON) == 0 && e.Result.Literal != "":
		v.Text = e.Result.Literal
	case len(v.JSON) == 0:
		v.Text = e.Result.Type
	}
	return v, nil
}

// callScript calls a function of page.js and decodes its result into out.
func (t *Tab) callScript(ctx context.Context, out any, function string, arguments ...any) error {
	var raw json.RawMessage
	for attempt := 0; ; attempt++ {
		world, err := t.ensureWorld(ctx)
		if err != nil {
			return err
		}
		values := make([]object, len(arguments))
		for i, a := range arguments {
			values[i] = object{"value": a}
		}
		raw, err = t.callPage(ctx, "Runtime.callFunctionOn", object{
			"functionDeclaration": "function(...rest) { return sandpit." + function + "(...rest); }",
			"executionContextId":  world, "arguments": values, "returnByValue": true,
		})
		if _, refused := errors.AsType[*protocolError](err); refused && attempt < 2 { // the page has changed
			t.resetWorld()
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	var e evaluation
	if err := json.Unmarshal(raw, &e); err != nil {
		return sandpit.Errorf(sandpit.Internal, "decode the page's response: %w", err)
	}
	if e.Exception != nil {
		return sandpit.Errorf(sandpit.Internal, "the page cannot be inspected: %s", truncate(e.thrownText(), maxNote))
	}
	var problem struct {
		Problem *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"problem"`
	}
	if err := json.Unmarshal(e.Result.Value, &problem); err == nil && problem.Problem != nil {
		return pageError(problem.Problem.Code, truncate(problem.Problem.Message, maxNote))
	}
	if err := json.Unmarshal(e.Result.Value, out); err != nil {
		return sandpit.Errorf(sandpit.Internal, "decode the page's response: %w", err)
	}
	return nil
}

func pageError(code, message string) error {
	switch code {
	case "not_found":
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%s", message), "call browser_state to see the page with current numbers")
	case "conflict":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "%s", message), "call browser_screenshot to see the page")
	}
	return sandpit.Errorf(sandpit.Invalid, "%s", message)
}

// ensureWorld returns the isolated world of page.js in the page. It creates the world if necessary.
func (t *Tab) ensureWorld(ctx context.Context) (int, error) {
	t.b.mu.Lock()
	world := t.world
	t.b.mu.Unlock()
	if world != 0 {
		return world, nil
	}
	raw, err := t.callPage(ctx, "Page.createIsolatedWorld", object{"frameId": t.target, "worldName": scriptWorld})
	if err != nil {
		return 0, err
	}
	var made struct {
		World int `json:"executionContextId"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return 0, sandpit.Errorf(sandpit.Internal, "decode the browser's response: %w", err)
	}
	if _, err := t.callPage(ctx, "Runtime.evaluate", object{"expression": pageScript, "contextId": made.World}); err != nil {
		return 0, err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.world = made.World
	return t.world, nil
}

func (t *Tab) resetWorld() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.world = 0
}

// cleanText removes control characters from a text of a page and truncates it.
func cleanText(text string, limit int) string {
	return truncate(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text), limit)
}
