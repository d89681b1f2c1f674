package tool

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/browser"
)

const (
	// browserDir is the directory of browser profiles: see Session.statePath.
	browserDir = ".browser"
	// browserTimeout bounds a call, including the start of the browser.
	browserTimeout = 120 * time.Second
	// tabTimeout bounds opening a page, browserStopTimeout the end of a browser.
	tabTimeout         = 30 * time.Second
	browserStopTimeout = 15 * time.Second
	// maxAddress bounds an address in bytes; data: URLs may be long.
	maxAddress = 1 << 20
	// briefSize bounds the text of a page in results of actions, in bytes.
	briefSize = 6000
	// navigateTimeout is the default time for loading a page.
	navigateTimeout = 30 * time.Second
)

// browserHolder holds the browser of a session, which the first call that needs it starts.
type browserHolder struct {
	token   chan struct{} // has one token, whose holder may use the following fields
	browser *browser.Browser
	view    browser.View
	accept  bool
	mouse   browser.Point
}

func newBrowserHolder() *browserHolder {
	w := &browserHolder{token: make(chan struct{}, 1), view: browser.View{Width: 1280, Height: 720}}
	w.token <- struct{}{}
	return w
}

// acquire reserves the browser for one call. The caller must call release.
func (w *browserHolder) acquire(ctx context.Context) error {
	select {
	case <-w.token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *browserHolder) release() { w.token <- struct{}{} }

// closeBrowser ends the browser if it runs. The caller has called acquire.
func (w *browserHolder) closeBrowser(ctx context.Context) error {
	if w.browser == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), browserStopTimeout)
	defer cancel()
	err := w.browser.Close(limited)
	w.browser = nil
	return err
}

// closeBrowser ends the browser if it runs, after the current call.
func (s *Session) closeBrowser() error {
	ctx, cancel := context.WithTimeout(context.Background(), browserTimeout)
	defer cancel()
	if err := s.browsing.acquire(ctx); err != nil {
		return err
	}
	defer s.browsing.release()
	return s.browsing.closeBrowser(ctx)
}

// withBrowser calls do with the browser and its current page, and adds the browser's notes to the
// result.
func (s *Session) withBrowser(ctx context.Context, do func(*browser.Browser, *browser.Tab) (Result, error)) (Result, error) {
	if err := s.browsing.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer s.browsing.release()
	b, err := s.ensureBrowser(ctx)
	if err != nil {
		return Result{}, err
	}
	limited, cancel := context.WithTimeout(ctx, tabTimeout)
	defer cancel()
	tab, err := b.Tab(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(sandpit.Errorf(sandpit.Timeout, "the browser did not respond and was ended"), s.browsing.closeBrowser(ctx))
	}
	if err != nil {
		return Result{}, err
	}
	result, err := do(b, tab)
	for _, note := range b.Notes() {
		result.Text += "\n(" + note + ")"
	}
	return result, err
}

// ensureBrowser returns the browser of the session. It starts the browser if necessary.
func (s *Session) ensureBrowser(ctx context.Context) (*browser.Browser, error) {
	w := s.browsing
	if w.browser != nil && w.browser.Alive() {
		return w.browser, nil
	}
	if err := w.closeBrowser(ctx); err != nil {
		return nil, err
	}
	b, err := browser.Start(ctx, s.guest, browser.Options{
		Memory: s.memory,
		User:   s.o.User, Profile: s.statePath(path.Join(browserDir, s.o.ID)), Env: s.environment(), View: w.view,
	})
	if err != nil {
		return nil, err
	}
	b.SetDialogs(w.accept)
	w.browser, w.mouse = b, browser.Point{}
	return b, nil
}

// checkAddress checks and completes an address to open.
//
// PermissionDenied: an unsupported scheme, or a file outside of the confined session's directory.
func (s *Session) checkAddress(ctx context.Context, text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxAddress {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid address: want 1 to %d bytes", maxAddress)
	}
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "data", text == "about:blank":
		return text, nil
	case scheme == "file":
		return s.checkFileAddress(ctx, text)
	case scheme == "about", scheme == "javascript", scheme == "blob", strings.Contains(text, "://") && scheme != "http" && scheme != "https":
		return "", sandpit.Errorf(sandpit.PermissionDenied, "the browser opens http, https, data and file addresses, not %.20q", scheme)
	case !strings.HasPrefix(rest, "//"): // example.com, localhost:8000
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid address %.200q", text)
	}
	return u.String(), nil
}

func (s *Session) checkFileAddress(ctx context.Context, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host != "" || !path.IsAbs(u.Path) {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid file address: want file:///path")
	}
	f, err := s.checkAccess(ctx, u.Path)
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: f.Path}).String(), nil
}

// parseSize parses a resolution such as 1280x720. Invalid: malformed or out of range.
func parseSize(text string) (browser.View, error) {
	var v browser.View
	var rest string
	n, _ := fmt.Sscanf(text+" .", "%dx%d %s", &v.Width, &v.Height, &rest) // n is the number of parsed values
	if n != 3 || rest != "." || v.Width < 320 || v.Height < 240 || v.Width > 2560 || v.Height > 1600 {
		return v, sandpit.Errorf(sandpit.Invalid, "invalid resolution %.40q: want 320x240 to 2560x1600, such as 1280x720", text)
	}
	return v, nil
}

// takePicture returns a screenshot of the page.
func takePicture(ctx context.Context, t *browser.Tab, full bool) (Image, error) {
	p, err := t.Screenshot(ctx, full)
	return Image{MIME: p.MIME, Data: p.Data}, err
}

// pageText returns the state of a page as text.
func pageText(state browser.State, limit int) string {
	var b strings.Builder
	b.WriteString(whereText(state.About) + "\n")
	if state.Above > 0 || state.Below > 0 {
		fmt.Fprintf(&b, "%d pixels above and %d below the visible part\n", state.Above, state.Below)
	}
	text := strings.TrimSpace(state.Text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "\n(the page has more text: see browser_state)"
	} else if state.Cut {
		text += "\n(the page has more text)"
	}
	if text == "" {
		text = "(the page is empty)"
	}
	return b.String() + "\n" + text
}

// whereText returns a page's title and address.
func whereText(a browser.About) string {
	title := strings.TrimSpace(a.Title)
	if title == "" {
		title = "(no title)"
	}
	text := title + "\n" + a.URL
	if a.Status >= 400 {
		text += fmt.Sprintf("\nthe server responded with status %d", a.Status)
	}
	return text
}

// actionResult returns the result of an action on a page, with the page's address afterwards.
func actionResult(ctx context.Context, t *browser.Tab, text string) (Result, error) {
	about, err := t.About(ctx)
	if sandpit.CodeOf(err) == sandpit.Unavailable { // the page has closed itself
		return Result{Text: text + "\nthe page is no longer open"}, nil
	}
	if err != nil {
		return Result{Text: text}, err
	}
	return Result{Text: text + "\nNow at: " + whereText(about), Data: about}, nil
}
