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
	// browserDir is where browsers keep their profiles: see Session.statePath.
	browserDir = ".browser"
	// browserTimeout is how long a call may take: a browser may have to start first.
	browserTimeout = 120 * time.Second
	// tabTimeout is how long a browser may take to have a page, browserStopTimeout how long its
	// end may take.
	tabTimeout         = 30 * time.Second
	browserStopTimeout = 15 * time.Second
	// maxAddress is the longest address, in bytes: data: URLs may be long.
	maxAddress = 1 << 20
	// briefSize is how much of a page an answer tells that was not asked for it, in bytes.
	briefSize = 6000
	// navigateTimeout is how long a page may take to come if nobody says.
	navigateTimeout = 30 * time.Second
)

// browserHolder is the browser of a session, which is started by the first call that needs it.
type browserHolder struct {
	token   chan struct{} // holds the one token of who uses what follows
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

// acquire takes the browser for one call. The caller must leave.
func (w *browserHolder) acquire(ctx context.Context) error {
	select {
	case <-w.token:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *browserHolder) release() { w.token <- struct{}{} }

// closeBrowser ends the browser, if there is one. The caller has entered.
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

// closeBrowser ends the browser after the call that uses it, if there is one.
func (s *Session) closeBrowser() error {
	ctx, cancel := context.WithTimeout(context.Background(), browserTimeout)
	defer cancel()
	if err := s.browsing.acquire(ctx); err != nil {
		return err
	}
	defer s.browsing.release()
	return s.browsing.closeBrowser(ctx)
}

// withBrowser does something with the browser and its present page, and adds to the result
// what has happened beside.
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
		err = errors.Join(sandpit.Errorf(sandpit.Timeout, "the browser did not answer and was ended"), s.browsing.closeBrowser(ctx))
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

// ensureBrowser is the browser of the session, which is started if it does not run.
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

// checkAddress checks what a browser is to open.
//
// PermissionDenied: it is of a kind that is not opened, or a file outside of where the
// session is confined to.
func (s *Session) checkAddress(ctx context.Context, text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxAddress {
		return "", sandpit.Errorf(sandpit.Invalid, "an address has 1 to %d bytes", maxAddress)
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
		return "", sandpit.Errorf(sandpit.Invalid, "%.200q is no address", text)
	}
	return u.String(), nil
}

func (s *Session) checkFileAddress(ctx context.Context, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host != "" || !path.IsAbs(u.Path) {
		return "", sandpit.Errorf(sandpit.Invalid, "the address of a file is file:///path")
	}
	f, err := s.files.Stat(ctx, u.Path) // which knows to what the session is confined
	if err != nil {
		return "", err
	}
	return (&url.URL{Scheme: "file", Path: f.Path}).String(), nil
}

// parseSize reads a resolution: 1280x720. Invalid.
func parseSize(text string) (browser.View, error) {
	var v browser.View
	var rest string
	n, _ := fmt.Sscanf(text+" .", "%dx%d %s", &v.Width, &v.Height, &rest) // what it could not read it does not count
	if n != 3 || rest != "." || v.Width < 320 || v.Height < 240 || v.Width > 2560 || v.Height > 1600 {
		return v, sandpit.Errorf(sandpit.Invalid, "the resolution %.40q: want one from 320x240 to 2560x1600, such as 1280x720", text)
	}
	return v, nil
}

// takePicture is a result's picture of the page.
func takePicture(ctx context.Context, t *browser.Tab, full bool) (Image, error) {
	p, err := t.Screenshot(ctx, full)
	return Image{MIME: p.MIME, Data: p.Data}, err
}

// pageText is how the state of a page reads.
func pageText(state browser.State, limit int) string {
	var b strings.Builder
	b.WriteString(whereText(state.About) + "\n")
	if state.Above > 0 || state.Below > 0 {
		fmt.Fprintf(&b, "%d pixels above, %d below of what is shown\n", state.Above, state.Below)
	}
	text := strings.TrimSpace(state.Text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "\n(there is more on this page: see browser_state)"
	} else if state.Cut {
		text += "\n(there is more on this page)"
	}
	if text == "" {
		text = "(the page is empty)"
	}
	return b.String() + "\n" + text
}

// whereText is a page's title and address.
func whereText(a browser.About) string {
	title := strings.TrimSpace(a.Title)
	if title == "" {
		title = "(no title)"
	}
	text := title + "\n" + a.URL
	if a.Status >= 400 {
		text += fmt.Sprintf("\nthe server has answered with status %d", a.Status)
	}
	return text
}

// actionResult is the result of something that was done to a page: what, and where that has led.
func actionResult(ctx context.Context, t *browser.Tab, text string) (Result, error) {
	about, err := t.About(ctx)
	if sandpit.CodeOf(err) == sandpit.Unavailable { // it has closed itself
		return Result{Text: text + "\nthe page is no longer open"}, nil
	}
	if err != nil {
		return Result{Text: text}, err
	}
	return Result{Text: text + "\nNow at: " + whereText(about), Data: about}, nil
}
