package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// Tab is an open page. Its methods are safe for concurrent use, but actions should be sequential.
type Tab struct {
	b       *Browser
	target  string
	session string
	number  int

	// The browser's mu guards the following fields.
	url, title    string
	loading       bool
	dialogs       int
	world         int   // the isolated world of page.js, 0 for none
	heldModifiers int   // bits of the modifiers that Hold has pressed
	closed        error // the error of all calls after the end of the page
}

// TabInfo describes a page.
type TabInfo struct {
	ID      int    `json:"page_id"`
	URL     string `json:"url"`
	Title   string `json:"title"`
	Current bool   `json:"current,omitempty"`
}

const (
	maxURL   = 2000
	maxTitle = 300
	maxID    = 200
	// maxDialogs bounds the dialogs that a page may open during one call.
	maxDialogs = 50
)

// handleEvent handles an event. It must not block.
func (b *Browser) handleEvent(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e.Method {
	case "Target.attachedToTarget":
		b.addTab(e.Params)
	case "Target.detachedFromTarget", "Target.targetInfoChanged", "Target.targetCrashed":
		b.updateTab(e)
	case "Browser.downloadWillBegin":
		var p struct {
			URL string `json:"url"`
		}
		if json.Unmarshal(e.Params, &p) == nil {
			b.addNote("a download was refused: " + p.URL)
		}
	default:
		b.handlePageEvent(e)
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// addNote stores a note for Notes. The caller holds mu.
func (b *Browser) addNote(text string) {
	if len(b.notes) < maxNotes {
		b.notes = append(b.notes, truncate(text, maxNote))
	}
}

type targetInfo struct {
	ID     string `json:"targetId"`
	Type   string `json:"type"`
	Title  string `json:"title"`
	URL    string `json:"url"`
	Opener string `json:"openerId"`
}

func (b *Browser) addTab(params json.RawMessage) {
	var p struct {
		Session string     `json:"sessionId"`
		Info    targetInfo `json:"targetInfo"`
	}
	if json.Unmarshal(params, &p) != nil || p.Info.Type != "page" || p.Session == "" || len(p.Session) > maxID || len(p.Info.ID) > maxID {
		return
	}
	if len(b.tabs) >= maxTabs {
		b.addNote("a new page was closed because too many pages are open")
		b.resumePage(p.Session)
		b.conn.callAsync("", "Target.closeTarget", object{"targetId": p.Info.ID})
		return
	}
	b.opened++
	t := &Tab{b: b, target: p.Info.ID, session: p.Session, number: b.opened, url: truncate(p.Info.URL, maxURL), title: truncate(p.Info.Title, maxTitle)}
	b.tabs = append(b.tabs, t)
	if b.current == nil {
		b.current = t
	}
	if p.Info.Opener != "" {
		b.addNote(fmt.Sprintf("a page was opened: %d", t.number))
	}
	b.conn.callAsync(t.session, "Page.enable", nil)
	b.conn.callAsync(t.session, "Page.setInterceptFileChooserDialog", object{"enabled": true})
	t.setSize(b.view)
	b.resumePage(t.session)
}

// resumePage starts a page that another page has opened; the browser pauses such pages.
func (b *Browser) resumePage(session string) {
	b.conn.callAsync(session, "Runtime.runIfWaitingForDebugger", nil)
}

// setSize sets the size of the page's window.
func (t *Tab) setSize(v View) {
	t.b.conn.callAsync(t.session, "Emulation.setDeviceMetricsOverride", object{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": false})
}

// updateTab handles an event about a page.
func (b *Browser) updateTab(e event) {
	var p struct {
		Session string     `json:"sessionId"`
		Target  string     `json:"targetId"`
		Info    targetInfo `json:"targetInfo"`
	}
	if json.Unmarshal(e.Params, &p) != nil {
		return
	}
	for _, t := range b.tabs {
		switch {
		case e.Method == "Target.targetInfoChanged" && p.Info.ID == t.target:
			t.url, t.title = truncate(p.Info.URL, maxURL), truncate(p.Info.Title, maxTitle)
		case e.Method == "Target.detachedFromTarget" && p.Session == t.session:
			b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page has been closed"), "open another page"))
			return
		case e.Method == "Target.targetCrashed" && p.Target == t.target:
			b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page has crashed"), "open another page; large pages may crash in a sandbox with little memory"))
			b.conn.callAsync("", "Target.closeTarget", object{"targetId": t.target})
			return
		}
	}
}

// dropTab removes a page and fails its calls with err. The caller holds mu.
func (b *Browser) dropTab(t *Tab, err error) {
	b.tabs = slices.DeleteFunc(b.tabs, func(other *Tab) bool { return other == t })
	if b.current == t {
		b.current = nil
		if len(b.tabs) > 0 {
			b.current = b.tabs[len(b.tabs)-1]
		}
	}
	t.closed = err
	b.conn.failSession(t.session, err)
}

// handlePageEvent handles an event of a page.
func (b *Browser) handlePageEvent(e event) {
	at := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.session == e.Session })
	if at < 0 {
		return
	}
	t := b.tabs[at]
	var p struct {
		FrameID string `json:"frameId"`
		Frame   struct {
			ID string `json:"id"`
		} `json:"frame"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	if json.Unmarshal(e.Params, &p) != nil {
		return
	}
	// The main frame has the ID of the page.
	switch {
	case e.Method == "Page.frameStartedLoading" && p.FrameID == t.target:
		t.loading = true
	case e.Method == "Page.frameStoppedLoading" && p.FrameID == t.target:
		t.loading = false
	case e.Method == "Page.frameNavigated" && p.Frame.ID == t.target:
		t.world = 0
	case e.Method == "Page.javascriptDialogOpening":
		b.answerDialog(t, p.Type, p.Message)
	}
}

// answerDialog answers a dialog as SetDialogs has configured.
func (b *Browser) answerDialog(t *Tab, kind, message string) {
	t.dialogs++
	if t.dialogs > maxDialogs {
		b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page opened too many dialogs and was closed"), "open another page"))
		b.conn.callAsync("", "Target.closeTarget", object{"targetId": t.target})
		return
	}
	accept := kind == "alert" || kind == "beforeunload" || b.accept
	done := "dismissed"
	if accept {
		done = "accepted"
	}
	b.addNote(fmt.Sprintf("the page showed a dialog (%s), which was %s: %s", truncate(kind, 20), done, message))
	b.conn.callAsync(t.session, "Page.handleJavaScriptDialog", object{"accept": accept})
}

// Notes returns and clears the notes about dialogs, downloads and new pages since the last call.
func (b *Browser) Notes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	notes := b.notes
	b.notes = nil
	for _, t := range b.tabs {
		t.dialogs = 0
	}
	return notes
}

// SetDialogs sets whether dialogs of pages are accepted. Default: they are dismissed.
func (b *Browser) SetDialogs(accept bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accept = accept
}

// SetView changes the size of all windows.
func (b *Browser) SetView(v View) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view = v
	for _, t := range b.tabs {
		t.setSize(v)
	}
}

// View returns the size of windows.
func (b *Browser) View() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.view
}

// Tabs returns the open pages.
func (b *Browser) Tabs() []TabInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []TabInfo{}
	for _, t := range b.tabs {
		list = append(list, TabInfo{ID: t.number, URL: t.url, Title: t.title, Current: t == b.current})
	}
	return list
}

// Tab returns the current page. It opens one if necessary.
func (b *Browser) Tab(ctx context.Context) (*Tab, error) {
	b.mu.Lock()
	current := b.current
	b.mu.Unlock()
	if current != nil {
		return current, nil
	}
	return b.NewTab(ctx)
}

// waitUntil waits for a condition, which it checks while it holds mu. It fails if the browser ends.
func (b *Browser) waitUntil(ctx context.Context, condition func() bool) error {
	for {
		b.mu.Lock()
		met, changed := condition(), b.changed
		b.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-changed:
		case <-b.ended:
			_, _, err := b.conn.sendRequest("", "Browser.getVersion", nil) // returns the reason
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// findTab returns a page by its number. NotFound: no such page.
func (b *Browser) findTab(number int) (*Tab, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.number == number })
	if at < 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "no open page has the number %d", number)
	}
	return b.tabs[at], nil
}

// Switch sets the current page. NotFound: no such page.
func (b *Browser) Switch(ctx context.Context, number int) error {
	t, err := b.findTab(number)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.current = t
	b.mu.Unlock()
	_, err = t.callPage(ctx, "Page.bringToFront", nil)
	return err
}

// CloseTab closes a page. NotFound: no such page.
func (b *Browser) CloseTab(ctx context.Context, number int) error {
	t, err := b.findTab(number)
	if err != nil {
		return err
	}
	if _, err := b.conn.call(ctx, "", "Target.closeTarget", object{"targetId": t.target}); err != nil {
		return err
	}
	return b.waitUntil(ctx, func() bool { return !slices.Contains(b.tabs, t) })
}

// NewTab opens an empty page and makes it the current one.
//
// Exhausted: too many pages are open.
func (b *Browser) NewTab(ctx context.Context) (*Tab, error) {
	if len(b.Tabs()) >= maxTabs {
		return nil, sandpit.Errorf(sandpit.Exhausted, "%d pages are open, the maximum: close some", maxTabs)
	}
	raw, err := b.conn.call(ctx, "", "Target.createTarget", object{"url": "about:blank"})
	if err != nil {
		return nil, err
	}
	var made struct {
		ID string `json:"targetId"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "decode the browser's response: %w", err)
	}
	var t *Tab
	err = b.waitUntil(ctx, func() bool {
		at := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.target == made.ID })
		if at >= 0 {
			t = b.tabs[at]
			b.current = t
		}
		return at >= 0
	})
	return t, err
}
