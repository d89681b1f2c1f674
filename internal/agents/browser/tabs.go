package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// Tab is a page that is open. Its methods may be called concurrently, but should not.
type Tab struct {
	b       *Browser
	target  string
	session string
	number  int

	// What follows is guarded by the browser's mu.
	url, title    string
	loading       bool
	dialogs       int
	world         int   // where our script is, 0 if nowhere
	heldModifiers int   // bits of the modifiers that Hold has pressed
	closed        error // why nothing can be done any more
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
	// maxDialogs is how many dialogs a page may open during one call.
	maxDialogs = 50
)

// handleEvent takes an event. It must not wait.
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

// addNote keeps something that the next answer should tell. The caller holds mu.
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
		b.addNote("a page was closed at once, for too many are open")
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

// resumePage lets a page go on that has been opened by another one, which stands still until
// then.
func (b *Browser) resumePage(session string) {
	b.conn.callAsync(session, "Runtime.runIfWaitingForDebugger", nil)
}

// setSize gives the page's window a size.
func (t *Tab) setSize(v View) {
	t.b.conn.callAsync(t.session, "Emulation.setDeviceMetricsOverride", object{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": false})
}

// updateTab takes what the browser says of pages.
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
			b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page has been closed"), "open another one"))
			return
		case e.Method == "Target.targetCrashed" && p.Target == t.target:
			b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page has crashed"), "open another one; pages that need much memory may crash in a small sandbox"))
			b.conn.callAsync("", "Target.closeTarget", object{"targetId": t.target})
			return
		}
	}
}

// dropTab forgets a page, whose calls end with an error. The caller holds mu.
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

// handlePageEvent takes what a page says.
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
	// The main frame has the name of the page.
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

// answerDialog answers a dialog, since nobody else can.
func (b *Browser) answerDialog(t *Tab, kind, message string) {
	t.dialogs++
	if t.dialogs > maxDialogs {
		b.dropTab(t, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the page opens dialogs without end and was closed"), "open another one"))
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

// Notes are what has happened beside since they were last asked for: dialogs, downloads,
// new pages.
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

// SetDialogs says whether questions of pages are answered by yes. Default: no.
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

// View is the size of windows.
func (b *Browser) View() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.view
}

// Tabs lists the pages that are open.
func (b *Browser) Tabs() []TabInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []TabInfo{}
	for _, t := range b.tabs {
		list = append(list, TabInfo{ID: t.number, URL: t.url, Title: t.title, Current: t == b.current})
	}
	return list
}

// Tab returns the page that things are done to. One is opened if there is none.
func (b *Browser) Tab(ctx context.Context) (*Tab, error) {
	b.mu.Lock()
	current := b.current
	b.mu.Unlock()
	if current != nil {
		return current, nil
	}
	return b.NewTab(ctx)
}

// waitUntil waits for a condition, which is asked while mu is held. The browser may end first.
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
			_, _, err := b.conn.sendRequest("", "Browser.getVersion", nil) // which says why
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// findTab finds a page by its number. NotFound.
func (b *Browser) findTab(number int) (*Tab, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.number == number })
	if at < 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "there is no page %d", number)
	}
	return b.tabs[at], nil
}

// Switch makes another page the one that things are done to. NotFound.
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

// CloseTab closes a page. NotFound.
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

// NewTab opens an empty page and makes it the one that things are done to.
//
// Exhausted: too many are open.
func (b *Browser) NewTab(ctx context.Context) (*Tab, error) {
	if len(b.Tabs()) >= maxTabs {
		return nil, sandpit.Errorf(sandpit.Exhausted, "%d pages are open, and no more can be: close some", maxTabs)
	}
	raw, err := b.conn.call(ctx, "", "Target.createTarget", object{"url": "about:blank"})
	if err != nil {
		return nil, err
	}
	var made struct {
		ID string `json:"targetId"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "the browser's answer: %w", err)
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
