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
	// pageTime is how long a page may take to answer, loadTime to load what follows from
	// what was done to it, reactTime to begin with that.
	pageTime  = 20 * time.Second
	loadTime  = 10 * time.Second
	reactTime = 150 * time.Millisecond
	// scriptWorld names the world of our script.
	scriptWorld = "sandpit"
)

//go:embed page.js
var pageScript string

// do calls a method of the page.
//
// Timeout: it does not answer, and is closed. Unavailable: it has ended.
func (t *Tab) do(ctx context.Context, method string, params any) (json.RawMessage, error) {
	return t.doWithin(ctx, pageTime, method, params)
}

func (t *Tab) doWithin(ctx context.Context, limit time.Duration, method string, params any) (json.RawMessage, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.send(limited, method, params)
	if errors.Is(err, context.DeadlineExceeded) {
		t.abandon()
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "the page did not answer within %s and was closed", limit), "open another one")
	}
	return raw, err
}

// send calls a method of the page, if it is open.
func (t *Tab) send(ctx context.Context, method string, params any) (json.RawMessage, error) {
	t.b.mu.Lock()
	closed := t.closed
	t.b.mu.Unlock()
	if closed != nil {
		return nil, closed
	}
	return t.b.conn.do(ctx, t.session, method, params)
}

// abandon closes a page that does not answer.
func (t *Tab) abandon() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.b.drop(t, sandpit.Errorf(sandpit.Unavailable, "the page has been closed"))
	t.b.conn.post("", "Target.closeTarget", object{"targetId": t.target})
}

// Navigate opens a URL and waits until the page has loaded, for limit at most. It reports
// whether it has.
//
// Unavailable: there is nothing, or it cannot be reached. Timeout: nothing came within
// limit. Unsupported: it is something to download.
func (t *Tab) Navigate(ctx context.Context, address string, limit time.Duration) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := t.send(limited, "Page.navigate", object{"url": address})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		t.b.conn.post(t.session, "Page.stopLoading", nil)
		return false, sandpit.Errorf(sandpit.Timeout, "nothing came from %s within %s", host(address), limit)
	}
	if refused, ok := errors.AsType[*refusal](err); ok {
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
		return false, sandpit.Errorf(sandpit.Unavailable, "%s cannot be opened: %s", host(address), bounded(came.Error, 100))
	}
	return t.loaded(limited, ctx)
}

// host is what an error tells of an address: no secrets that may be in it.
func host(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "the page"
	}
	return u.Host
}

// loaded waits for the end of loading while limited lasts.
func (t *Tab) loaded(limited, ctx context.Context) (bool, error) {
	var closed error
	err := t.b.until(limited, func() bool {
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
	case <-time.After(reactTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	limited, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	_, err := t.loaded(limited, ctx)
	return err
}

// Back goes to the page before (-1) or after (1) in the history. Conflict: there is none.
func (t *Tab) Back(ctx context.Context, step int) error {
	raw, err := t.do(ctx, "Page.getNavigationHistory", nil)
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
	if _, err := t.do(ctx, "Page.navigateToHistoryEntry", object{"entryId": history.Entries[at].ID}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// Reload loads the page anew.
func (t *Tab) Reload(ctx context.Context) error {
	if _, err := t.do(ctx, "Page.reload", nil); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// remote is a value of the page.
type remote struct {
	Type        string          `json:"type"`
	Value       json.RawMessage `json:"value"`
	Literal     string          `json:"unserializableValue"` // NaN, -0, 12n and the like
	Description string          `json:"description"`
}

type evaluated struct {
	Result    remote `json:"result"`
	Exception *struct {
		Text      string `json:"text"`
		Exception remote `json:"exception"`
	} `json:"exceptionDetails"`
}

func (e evaluated) thrown() string {
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

// stopped is the browser's code for an expression that took too long: "internal error".
const stopped = -32603

// Evaluate has the page evaluate an expression and waits for it if it is a promise. What
// comes is the page's own word.
//
// Timeout: it took longer than limit, and was stopped. Exhausted: the value is too large.
// Unsupported: it cannot be told as JSON, such as an element.
func (t *Tab) Evaluate(ctx context.Context, expression string, limit time.Duration) (Value, error) {
	raw, err := t.doWithin(ctx, limit+pageTime/4, "Runtime.evaluate", object{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true, "replMode": true, "timeout": limit.Milliseconds(),
	})
	refused, ok := errors.AsType[*refusal](err)
	if ok && refused.Code == stopped {
		return Value{}, sandpit.Errorf(sandpit.Timeout, "the expression took longer than %s and was stopped", limit)
	}
	if ok {
		return Value{}, sandpit.Errorf(sandpit.Unsupported, "the value cannot be told: %w", refused)
	}
	if err != nil {
		return Value{}, err
	}
	var e evaluated
	if err := json.Unmarshal(raw, &e); err != nil {
		return Value{}, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
	}
	if e.Exception != nil {
		return Value{Text: e.thrown(), Thrown: true}, nil
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

// ask calls a function of our script, whose answer is put into out.
func (t *Tab) ask(ctx context.Context, out any, function string, arguments ...any) error {
	var raw json.RawMessage
	for attempt := 0; ; attempt++ {
		world, err := t.enter(ctx)
		if err != nil {
			return err
		}
		values := make([]object, len(arguments))
		for i, a := range arguments {
			values[i] = object{"value": a}
		}
		raw, err = t.do(ctx, "Runtime.callFunctionOn", object{
			"functionDeclaration": "function(...rest) { return sandpit." + function + "(...rest); }",
			"executionContextId":  world, "arguments": values, "returnByValue": true,
		})
		if _, refused := errors.AsType[*refusal](err); refused && attempt < 2 { // the page has changed meanwhile
			t.leave()
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	var e evaluated
	if err := json.Unmarshal(raw, &e); err != nil {
		return sandpit.Errorf(sandpit.Internal, "the page's answer: %w", err)
	}
	if e.Exception != nil {
		return sandpit.Errorf(sandpit.Internal, "the page cannot be looked at: %s", bounded(e.thrown(), maxNote))
	}
	var problem struct {
		Problem *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"problem"`
	}
	if err := json.Unmarshal(e.Result.Value, &problem); err == nil && problem.Problem != nil {
		return pageError(problem.Problem.Code, bounded(problem.Problem.Message, maxNote))
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

// enter returns the world of our script in the page.
func (t *Tab) enter(ctx context.Context) (int, error) {
	t.b.mu.Lock()
	world := t.world
	t.b.mu.Unlock()
	if world != 0 {
		return world, nil
	}
	raw, err := t.do(ctx, "Page.createIsolatedWorld", object{"frameId": t.target, "worldName": scriptWorld})
	if err != nil {
		return 0, err
	}
	var made struct {
		World int `json:"executionContextId"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return 0, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
	}
	if _, err := t.do(ctx, "Runtime.evaluate", object{"expression": pageScript, "contextId": made.World}); err != nil {
		return 0, err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.world = made.World
	return t.world, nil
}

func (t *Tab) leave() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.world = 0
}

// clean is a text of a page without what terminals or readers could take for more.
func clean(text string, limit int) string {
	return bounded(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text), limit)
}
