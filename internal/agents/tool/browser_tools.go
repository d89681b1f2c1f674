package tool

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/agents/browser"
)

type openInput struct {
	URL        string  `json:"url" jsonschema:"address: http, https, data or file"`
	NewTab     bool    `json:"new_tab,omitempty" jsonschema:"open it in a new page" default:"false"`
	Screenshot bool    `json:"screenshot,omitempty" jsonschema:"add a screenshot" default:"false"`
	Timeout    float64 `json:"timeout,omitempty" jsonschema:"seconds to wait for the page" default:"30" range:"1,300"`
}

type openData struct {
	browser.State
	// Loaded is false if the page is still loading.
	Loaded bool `json:"loaded"`
}

func browserOpen(ctx context.Context, s *Session, in openInput) (Result, error) {
	address, err := s.checkAddress(ctx, in.URL)
	if err != nil {
		return Result{}, err
	}
	return s.withBrowser(ctx, func(b *browser.Browser, t *browser.Tab) (Result, error) {
		if in.NewTab {
			if t, err = b.NewTab(ctx); err != nil {
				return Result{}, err
			}
		}
		loaded, err := t.Navigate(ctx, address, toDuration(in.Timeout))
		if err != nil {
			return Result{}, err
		}
		r, state, err := pageResult(ctx, t, briefSize, in.Screenshot)
		if !loaded {
			r.Text += "\n(the page is still loading)"
		}
		r.Data = openData{state, loaded}
		return r, err
	})
}

// pageResult returns the contents of a page.
func pageResult(ctx context.Context, t *browser.Tab, limit int, withPicture bool) (Result, browser.State, error) {
	state, err := t.State(ctx)
	if err != nil {
		return Result{}, state, err
	}
	r := Result{Text: pageText(state, limit)}
	if withPicture {
		shot, err := takePicture(ctx, t, false)
		if err != nil {
			return r, state, err
		}
		r.Images = []Image{shot}
	}
	return r, state, nil
}

type stateInput struct {
	Screenshot bool `json:"screenshot,omitempty" jsonschema:"add a screenshot" default:"false"`
}

type stateData struct {
	browser.State
	Tabs []browser.TabInfo `json:"tabs"`
}

func browserState(ctx context.Context, s *Session, in stateInput) (Result, error) {
	return s.withBrowser(ctx, func(b *browser.Browser, t *browser.Tab) (Result, error) {
		r, state, err := pageResult(ctx, t, maxAnswer, in.Screenshot)
		if err != nil {
			return r, err
		}
		tabs := b.Tabs()
		if len(tabs) > 1 {
			r.Text += "\n\nOpen pages:\n" + tabsText(tabs)
		}
		r.Data = stateData{state, tabs}
		return r, nil
	})
}

func tabsText(tabs []browser.TabInfo) string {
	var b strings.Builder
	for _, tab := range tabs {
		mark := " "
		if tab.Current {
			mark = "*"
		}
		fmt.Fprintf(&b, "%s %d  %s  %s\n", mark, tab.ID, tab.Title, tab.URL)
	}
	return strings.TrimRight(b.String(), "\n")
}

type screenshotInput struct {
	Full bool `json:"full_page,omitempty" jsonschema:"the full page, up to 8192 pixels high, instead of the visible part" default:"false"`
}

type screenshotData struct {
	Width  int    `json:"width"`
	Height int    `json:"height"`
	MIME   string `json:"mime"`
	Bytes  int    `json:"bytes"`
}

func browserScreenshot(ctx context.Context, s *Session, in screenshotInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		p, err := t.Screenshot(ctx, in.Full)
		if err != nil {
			return Result{}, err
		}
		return Result{
			Text: fmt.Sprintf("A screenshot of %d x %d pixels", p.Width, p.Height), Images: []Image{{MIME: p.MIME, Data: p.Data}},
			Data: screenshotData{p.Width, p.Height, p.MIME, len(p.Data)},
		}, nil
	})
}

type textInput struct {
	Selector string `json:"selector,omitempty" jsonschema:"CSS selector of an element; default: the whole page"`
	Index    *int   `json:"index,omitempty" jsonschema:"number of an element" range:"0,"`
	Format   string `json:"format,omitempty" jsonschema:"what to return" enum:"text,html" default:"text"`
}

type textData struct {
	Bytes int  `json:"bytes"`
	Cut   bool `json:"truncated,omitempty"`
}

func browserText(ctx context.Context, s *Session, in textInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		text, cut, err := t.Content(ctx, browser.Target{Index: in.Index, Selector: in.Selector}, in.Format == "html")
		if err != nil {
			return Result{}, err
		}
		data := textData{len(text), cut}
		if cut {
			text += "\n(truncated)"
		}
		if strings.TrimSpace(text) == "" {
			text = "(empty)"
		}
		return Result{Text: text, Data: data}, nil
	})
}

// elementInput selects an element.
type elementInput struct {
	Index    *int   `json:"index,omitempty" jsonschema:"number of the element in browser_state or browser_open" range:"0,"`
	Selector string `json:"selector,omitempty" jsonschema:"CSS selector of the element, instead of a number"`
	Name     string `json:"element_text,omitempty" jsonschema:"text of the element, instead of a number"`
}

func (in elementInput) toTarget() browser.Target {
	return browser.Target{Index: in.Index, Selector: in.Selector, Text: in.Name}
}

type clickInput struct {
	Index    *int   `json:"index,omitempty" jsonschema:"number of the element in browser_state or browser_open" range:"0,"`
	Selector string `json:"selector,omitempty" jsonschema:"CSS selector of the element, instead of a number"`
	Name     string `json:"text,omitempty" jsonschema:"text of the element, instead of a number"`
	Button   string `json:"button,omitempty" jsonschema:"mouse button" enum:"left,middle,right" default:"left"`
	Count    int    `json:"count,omitempty" jsonschema:"2 for a double click" default:"1" range:"1,3"`
}

func browserClick(ctx context.Context, s *Session, in clickInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		told, err := t.Click(ctx, elementInput{in.Index, in.Selector, in.Name}.toTarget(), browser.Click{Button: in.Button, Count: in.Count})
		if err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Clicked "+told)
	})
}

type fillInput struct {
	Index    *int   `json:"index,omitempty" jsonschema:"number of the field in browser_state or browser_open" range:"0,"`
	Selector string `json:"selector,omitempty" jsonschema:"CSS selector of the field, instead of a number"`
	Name     string `json:"element_text,omitempty" jsonschema:"label of the field, instead of a number"`
	Text     string `json:"text" jsonschema:"new text of the field; empty clears it"`
	Submit   bool   `json:"submit,omitempty" jsonschema:"press Enter after it" default:"false"`
}

func browserFill(ctx context.Context, s *Session, in fillInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		err := t.Fill(ctx, elementInput{in.Index, in.Selector, in.Name}.toTarget(), in.Text)
		if err == nil && in.Submit {
			err = t.Press(ctx, "Enter")
		}
		if err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Filled in")
	})
}

type selectInput struct {
	Index    *int   `json:"index,omitempty" jsonschema:"number of the list in browser_state or browser_open" range:"0,"`
	Selector string `json:"selector,omitempty" jsonschema:"CSS selector of the list, instead of a number"`
	Name     string `json:"element_text,omitempty" jsonschema:"label of the list, instead of a number"`
	Option   string `json:"option,omitempty" jsonschema:"text or value of the option; default: list the options"`
}

type optionsData struct {
	Options []browser.Option `json:"options"`
}

func browserSelect(ctx context.Context, s *Session, in selectInput) (Result, error) {
	target := elementInput{in.Index, in.Selector, in.Name}.toTarget()
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		if in.Option == "" {
			return listOptions(ctx, t, target)
		}
		if err := t.Select(ctx, target, in.Option); err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Selected "+in.Option)
	})
}

// listOptions returns the options of a drop-down list.
func listOptions(ctx context.Context, t *browser.Tab, target browser.Target) (Result, error) {
	options, err := t.Options(ctx, target)
	if err != nil {
		return Result{}, err
	}
	var b strings.Builder
	for _, o := range options {
		fmt.Fprintf(&b, "%d: %s", o.Index, o.Text)
		if o.Selected {
			b.WriteString(" (selected)")
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d options", len(options))
	return Result{Text: b.String(), Data: optionsData{options}}, nil
}

type pressInput struct {
	Key string `json:"key" jsonschema:"the key or keys: Enter, ArrowDown, a, Control+Shift+k"`
}

func browserPress(ctx context.Context, s *Session, in pressInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		if err := t.Press(ctx, in.Key); err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Pressed "+in.Key)
	})
}

type scrollInput struct {
	Direction string `json:"direction,omitempty" jsonschema:"direction" enum:"down,up" default:"down"`
	Amount    int    `json:"amount,omitempty" jsonschema:"pixels; default: almost the height of the window" range:"0,1000000"`
	Text      string `json:"text,omitempty" jsonschema:"scroll to this text instead"`
}

func browserScroll(ctx context.Context, s *Session, in scrollInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		return scrollPage(ctx, t, in)
	})
}

func scrollPage(ctx context.Context, t *browser.Tab, in scrollInput) (Result, error) {
	var at browser.Scroll
	var err error
	if in.Text != "" {
		at, err = t.ScrollTo(ctx, in.Text)
	} else {
		sign := 1.0
		if in.Direction == "up" {
			sign = -1
		}
		at, err = t.Scroll(ctx, sign*float64(in.Amount), sign)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Text: fmt.Sprintf("Scrolled: %d pixels above and %d below the visible part", at.Above, at.Below), Data: at}, nil
}

type browserWaitInput struct {
	Selector string  `json:"selector,omitempty" jsonschema:"wait until a visible element matches this CSS selector"`
	Text     string  `json:"text,omitempty" jsonschema:"wait until the page contains this text"`
	Seconds  float64 `json:"seconds,omitempty" jsonschema:"maximum seconds to wait; without selector and text, seconds to wait" default:"3" range:"0,300"`
}

func browserWait(ctx context.Context, s *Session, in browserWaitInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		var err error
		if in.Selector != "" || in.Text != "" {
			err = t.WaitFor(ctx, in.Selector, in.Text, toDuration(in.Seconds))
		} else {
			err = sleep(ctx, in.Seconds)
		}
		if err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Waited")
	})
}

// sleep waits for a number of seconds, or until ctx ends.
func sleep(ctx context.Context, seconds float64) error {
	timer := time.NewTimer(toDuration(seconds))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type evaluateInput struct {
	Expression string  `json:"expression" jsonschema:"JavaScript; its value is returned, await is allowed"`
	Timeout    float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is stopped" default:"10" range:"0,300"`
}

type evaluateData struct {
	Value  any  `json:"value"`
	Thrown bool `json:"thrown,omitempty"`
}

func browserEvaluate(ctx context.Context, s *Session, in evaluateInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		v, err := t.Evaluate(ctx, in.Expression, toDuration(in.Timeout))
		if err != nil {
			return Result{}, err
		}
		if v.Thrown {
			return Result{Text: "[FAILED]\n" + v.Text, Data: evaluateData{Value: s.secretSet().truncateText(v.Text), Thrown: true}, Failed: true}, nil
		}
		data := evaluateData{Value: v.JSON}
		if len(v.JSON) > maxText {
			data.Value = s.secretSet().truncateText(v.Text)
		}
		return Result{Text: v.Text, Data: data}, nil
	})
}

type backInput struct {
	Where string `json:"where,omitempty" jsonschema:"where to go" enum:"back,forward,reload" default:"back"`
}

func browserBack(ctx context.Context, s *Session, in backInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		var err error
		switch in.Where {
		case "reload":
			err = t.Reload(ctx)
		case "forward":
			err = t.Back(ctx, 1)
		default:
			err = t.Back(ctx, -1)
		}
		if err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Went "+in.Where)
	})
}

type tabsInput struct {
	Action string `json:"action,omitempty" jsonschema:"what to do" enum:"list,switch,close" default:"list"`
	Page   int    `json:"page_id,omitempty" jsonschema:"number of the page in the list" range:"0,"`
}

type tabsData struct {
	Tabs []browser.TabInfo `json:"tabs"`
}

func browserTabs(ctx context.Context, s *Session, in tabsInput) (Result, error) {
	return s.withBrowser(ctx, func(b *browser.Browser, _ *browser.Tab) (Result, error) {
		var err error
		switch in.Action {
		case "switch":
			err = b.Switch(ctx, in.Page)
		case "close":
			err = b.CloseTab(ctx, in.Page)
		}
		if err != nil {
			return Result{}, err
		}
		tabs := b.Tabs()
		text := tabsText(tabs)
		if len(tabs) == 0 {
			text = "No pages are open"
		}
		return Result{Text: text, Data: tabsData{tabs}}, nil
	})
}

type configInput struct {
	Resolution string `json:"resolution,omitempty" jsonschema:"size of the window in pixels, from 320x240 to 2560x1600" default:"1280x720"`
	Dialogs    string `json:"dialogs,omitempty" jsonschema:"how to answer dialogs of pages" enum:"dismiss,accept" default:"dismiss"`
}

func browserConfig(ctx context.Context, s *Session, in configInput) (Result, error) {
	view, err := parseSize(in.Resolution)
	if err != nil {
		return Result{}, err
	}
	if err := s.browsing.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer s.browsing.release()
	s.browsing.view, s.browsing.accept = view, in.Dialogs == "accept"
	if b := s.browsing.browser; b != nil {
		b.SetView(view)
		b.SetDialogs(s.browsing.accept)
	}
	return Result{Text: fmt.Sprintf("The window has %d x %d pixels; dialogs: %s", view.Width, view.Height, in.Dialogs), Data: view}, nil
}

type infoData struct {
	Product   string            `json:"product"`
	UserAgent string            `json:"user_agent"`
	Viewport  browser.View      `json:"viewport"`
	Tabs      []browser.TabInfo `json:"tabs"`
}

func browserInfo(ctx context.Context, s *Session, _ nothing) (Result, error) {
	return s.withBrowser(ctx, func(b *browser.Browser, _ *browser.Tab) (Result, error) {
		data := infoData{b.Product(), b.Agent(), b.View(), b.Tabs()}
		text := fmt.Sprintf("%s, a window of %d x %d pixels\n%s", data.Product, data.Viewport.Width, data.Viewport.Height, tabsText(data.Tabs))
		return Result{Text: text, Data: data}, nil
	})
}

func browserClose(ctx context.Context, s *Session, _ nothing) (Result, error) {
	if err := s.browsing.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer s.browsing.release()
	if s.browsing.browser == nil {
		return Result{Text: "The browser is not running"}, nil
	}
	return Result{Text: "Closed the browser"}, s.browsing.closeBrowser(ctx)
}
