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
	// pageTimeout is how long a page may take to answer, loadTimeout to load what follows from
	// what was done to it, reactDelay to begin with that.
	pageTimeout = 20 * time.Second
	loadTimeout = 10 * time.Second
	reactDelay  = 150 * time.Millisecond
	// scriptWorld names the world of our script.
	scriptWorld = "sandpit"
)

//go:embed page.js
var pageScript string

// callPage calls a method of the page.
//
// Timeout: it does not answer, and is closed. Unavailable: it has ended.
func (t *Tab) callPage(ctx context.Context, method string, params any) (json.RawMessage, error) {
	return t.callPageWithin(ctx, pageTimeout, method, params)
}

func (t *Tab) callPageWithin(ctx context.Context, limit time.Duration, method string, params any) (json.RawMessage, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.callOpen(limited, method, params)
	if errors.Is(err, context.DeadlineExceeded) {
		t.closeUnresponsive()
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "the page did not answer within %s and was closed", limit), "open another one")
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

// closeUnresponsive closes a page that does not answer.
func (t *Tab) closeUnresponsive() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.b.dropTab(t, sandpit.Errorf(sandpit.Unavailable, "the page has been closed"))
	t.b.conn.callAsync("", "Target.closeTarget", object{"targetId": t.target})
}

// Navigate opens a URL and waits until the page has loaded, for limit at most. It reports
// whether it has.
//
// Unavailable: there is nothing, or it cannot be reached. Timeout: nothing came within
// limit. Unsupported: it is something to download.
func (t *Tab) Navigate(ctx context.Context, address string, limit time.Duration) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.callOpen(limited, "Page.navigate", object{"url": address})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		t.b.conn.callAsync(t.session, "Page.stopLoading", nil)
		return false, sandpit.Errorf(sandpit.Timeout, "nothing came from %s within %s", urlHost(address), limit)
	}
	if refused, ok := errors.AsType[*protocolError](err); ok {
		return false, sandpit.Errorf(sandpit.Invalid, "the browser does not open this: %w", refused)
	}
	if err != nil {
		return false, err
	}
	var came struct {
		Error    string `json:"errorText"`
		Download bool   `json:"isDownload"`
	}
	if err := json.Unmarshal(raw, &came); err != nil {
		return false, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
	}
	if came.Download {
		return false, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this is a file to download, which the browser does not do"), "get it with http_request or curl")
	}
	if came.Error != "" {
		return false, sandpit.Errorf(sandpit.Unavailable, "%s cannot be opened: %s", urlHost(address), truncate(came.Error, 100))
	}
	return t.waitLoaded(limited, ctx)
}

// urlHost is what an error tells of an address: no secrets that may be in it.
func urlHost(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "the page"
	}
	return u.Host
}

// waitLoaded waits for the end of loading while limited lasts.
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

// Settle waits until the page has reacted to what was done to it: a moment, and while it
// loads, but not longer than some seconds.
func (t *Tab) Settle(ctx context.Context) error {
	select {
	case <-time.After(reactDelay):
	case <-ctx.Done():
		return ctx.Err()
	}
	limited, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	_, err := t.waitLoaded(limited, ctx)
	return err
}

// Back goes to the page before (-1) or after (1) in the history. Conflict: there is none.
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
		return sandpit.Errorf(sandpit.Internal, "the browser's history: %w", err)
	}
	at := history.Current + step
	if at < 0 || at >= len(history.Entries) {
		return sandpit.Errorf(sandpit.Conflict, "there is no page to go to")
	}
	if _, err := t.callPage(ctx, "Page.navigateToHistoryEntry", object{"entryId": history.Entries[at].ID}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// Reload loads the page anew.
func (t *Tab) Reload(ctx context.Context) error {
	if _, err := t.callPage(ctx, "Page.reload", nil); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// remoteValue is a value of the page.
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

// Value is what an expression is.
type Value struct {
	// JSON is the value, "" for undefined and what JSON cannot say.
	JSON json.RawMessage
	// Text is the value as a person reads it, or what was thrown.
	Text   string
	Thrown bool
}

// codeStopped is the browser's code for an expression that took too long: "internal error".
const codeStopped = -32603

// Evaluate has the page evaluate an expression and waits for it if it is a promise. What
// comes is the page's own word.
//
// Timeout: it took longer than limit, and was stopped. Exhausted: the value is too large.
// Unsupported: it cannot be told as JSON, such as an element.
func (t *Tab) Evaluate(ctx context.Context, expression string, limit time.Duration) (Value, error) {
	raw, err := t.callPageWithin(ctx, limit+pageTimeout/4, "Runtime.evaluate", object{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true, "replMode": true, "timeout": limit.Milliseconds(),
	})
	refused, ok := errors.AsType[*protocolError](err)
	if ok && refused.Code == codeStopped {
		return Value{}, sandpit.Errorf(sandpit.Timeout, "the expression took longer than %s and was stopped", limit)
	}
	if ok {
		return Value{}, sandpit.Errorf(sandpit.Unsupported, "the value cannot be told: %w", refused)
	}
	if err != nil {
		return Value{}, err
	}
	var e evaluation
	if err := json.Unmarshal(raw, &e); err != nil {
		return Value{}, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
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

// callScript calls a function of our script, whose answer is put into out.
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
		if _, refused := errors.AsType[*protocolError](err); refused && attempt < 2 { // the page has changed meanwhile
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
		return sandpit.Errorf(sandpit.Internal, "the page's answer: %w", err)
	}
	if e.Exception != nil {
		return sandpit.Errorf(sandpit.Internal, "the page cannot be looked at: %s", truncate(e.thrownText(), maxNote))
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
		return sandpit.Errorf(sandpit.Internal, "the page's answer: %w", err)
	}
	return nil
}

func pageError(code, message string) error {
	switch code {
	case "not_found":
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%s", message), "browser_state tells what is there, with new numbers")
	case "conflict":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "%s", message), "look at browser_screenshot")
	}
	return sandpit.Errorf(sandpit.Invalid, "%s", message)
}

// ensureWorld returns the world of our script in the page.
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
		return 0, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
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

// cleanText is a text of a page without what terminals or readers could take for more.
func cleanText(text string, limit int) string {
	return truncate(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text), limit)
}
