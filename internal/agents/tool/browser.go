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
	// browserTime is how long a call may take: a browser may have to start first.
	browserTime = 120 * time.Second
	// tabTime is how long a browser may take to have a page, browserStop how long its
	// end may take.
	tabTime     = 30 * time.Second
	browserStop = 15 * time.Second
	// maxAddress is the longest address, in bytes: data: URLs may be long.
	maxAddress = 1 << 20
	// briefText is how much of a page an answer tells that was not asked for it, in bytes.
	briefText = 6000
	// navigateTime is how long a page may take to come if nobody says.
	navigateTime = 30 * time.Second
)

// browsing is the browser of a session, which is started by the first call that needs it.
type browsing struct {
	busy   chan struct{} // holds the one token of who uses what follows
	b      *browser.Browser
	view   browser.View
	accept bool
	mouse  browser.Point
}

func newBrowsing() *browsing {
	w := &browsing{busy: make(chan struct{}, 1), view: browser.View{Width: 1280, Height: 720}}
	w.busy <- struct{}{}
	return w
}

// enter takes the browser for one call. The caller must leave.
func (w *browsing) enter(ctx context.Context) error {
	select {
	case <-w.busy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *browsing) leave() { w.busy <- struct{}{} }

// close ends the browser, if there is one. The caller has entered.
func (w *browsing) close(ctx context.Context) error {
	if w.b == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), browserStop)
	defer cancel()
	err := w.b.Close(limited)
	w.b = nil
	return err
}

// closeBrowser ends the browser after the call that uses it, if there is one.
func (s *Session) closeBrowser() error {
	ctx, cancel := context.WithTimeout(context.Background(), browserTime)
	defer cancel()
	if err := s.web.enter(ctx); err != nil {
		return err
	}
	defer s.web.leave()
	return s.web.close(ctx)
}

// browse does something with the browser and its present page, and adds to the result
// what has happened beside.
func (s *Session) browse(ctx context.Context, do func(*browser.Browser, *browser.Tab) (Result, error)) (Result, error) {
	if err := s.web.enter(ctx); err != nil {
		return Result{}, err
	}
	defer s.web.leave()
	b, err := s.startedBrowser(ctx)
	if err != nil {
		return Result{}, err
	}
	limited, cancel := context.WithTimeout(ctx, tabTime)
	defer cancel()
	tab, err := b.Tab(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(sandpit.Errorf(sandpit.Timeout, "the browser did not answer and was ended"), s.web.close(ctx))
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

// startedBrowser is the browser of the session, which is started if it does not run.
func (s *Session) startedBrowser(ctx context.Context) (*browser.Browser, error) {
	w := s.web
	if w.b != nil && w.b.Alive() {
		return w.b, nil
	}
	if err := w.close(ctx); err != nil {
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
	w.b, w.mouse = b, browser.Point{}
	return b, nil
}

// address checks what a browser is to open.
//
// PermissionDenied: it is of a kind that is not opened, or a file outside of where the
// session is confined to.
func (s *Session) address(ctx context.Context, text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxAddress {
		return "", sandpit.Errorf(sandpit.Invalid, "an address has 1 to %d bytes", maxAddress)
	}
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme = strings.ToLower(scheme); {
	case scheme == "data", text == "about:blank":
		return text, nil
	case scheme == "file":
		return s.fileAddress(ctx, text)
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

func (s *Session) fileAddress(ctx context.Context, text string) (string, error) {
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

// size reads a resolution: 1280x720. Invalid.
func size(text string) (browser.View, error) {
	var v browser.View
	var rest string
	n, _ := fmt.Sscanf(text+" .", "%dx%d %s", &v.Width, &v.Height, &rest) // what it could not read it does not count
	if n != 3 || rest != "." || v.Width < 320 || v.Height < 240 || v.Width > 2560 || v.Height > 1600 {
		return v, sandpit.Errorf(sandpit.Invalid, "the resolution %.40q: want one from 320x240 to 2560x1600, such as 1280x720", text)
	}
	return v, nil
}

// picture is a result's picture of the page.
func picture(ctx context.Context, t *browser.Tab, full bool) (Image, error) {
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

// after is the result of something that was done to a page: what, and where that has led.
func after(ctx context.Context, t *browser.Tab, text string) (Result, error) {
	about, err := t.About(ctx)
	if sandpit.CodeOf(err) == sandpit.Unavailable { // it has closed itself
		return Result{Text: text + "\nthe page is no longer open"}, nil
	}
	if err != nil {
		return Result{Text: text}, err
	}
	return Result{Text: text + "\nNow at: " + whereText(about), Data: about}, nil
}
