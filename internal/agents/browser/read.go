package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	_ "image/jpeg" // for screenshots that are too large as PNG
	_ "image/png"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// maxContent bounds the text of a page, in bytes.
	maxContent = 1 << 20
	// maxElements and maxName bound the state of a page.
	maxElements = 500
	maxName     = 400
	// maxPicture bounds a screenshot in bytes, maxSide and maxPixels in pixels.
	maxPicture = 10 << 20
	maxSide    = 8192
	maxPixels  = 16 << 20
)

// Target selects an element: by its number in the last State, by a CSS selector, or by its text.
type Target struct {
	Index    *int   `json:"index,omitempty"`
	Selector string `json:"selector,omitempty"`
	Text     string `json:"text,omitempty"`
}

func (t Target) checkTarget() error {
	given := 0
	for _, is := range []bool{t.Index != nil, t.Selector != "", t.Text != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return sandpit.Errorf(sandpit.Invalid, "select the element by exactly one of index, selector and text")
	}
	return nil
}

// About describes a page.
type About struct {
	URL   string `json:"url"`
	Title string `json:"title"`
	// Status is the HTTP status, 0 if unknown.
	Status int `json:"status,omitempty"`
	Width  int `json:"width"`
	Height int `json:"height"`
	Scroll
}

// Scroll is how many pixels are above and below the visible part.
type Scroll struct {
	Above int `json:"pixels_above"`
	Below int `json:"pixels_below"`
}

// Element is an interactive element of a page.
type Element struct {
	Index    int      `json:"index"`
	Role     string   `json:"role"`
	Name     string   `json:"name"`
	Value    string   `json:"value,omitempty"`
	Href     string   `json:"href,omitempty"`
	Options  []string `json:"options,omitempty"`
	Checked  bool     `json:"checked,omitempty"`
	Disabled bool     `json:"disabled,omitempty"`
}

// State is the contents of a page.
type State struct {
	About
	// Text is the page's text with the numbers of elements.
	Text     string    `json:"-"`
	Elements []Element `json:"elements"`
	// Cut is true if the page has more text or elements.
	Cut bool `json:"truncated,omitempty"`
}

type rawScroll struct {
	Above int `json:"above"`
	Below int `json:"below"`
}

type rawAbout struct {
	URL    string `json:"url"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
	rawScroll
}

func (r rawAbout) toAbout() About {
	return About{
		URL: cleanText(r.URL, maxURL), Title: cleanText(r.Title, maxTitle), Status: r.Status, Width: r.Width, Height: r.Height, Scroll: Scroll(r.rawScroll),
	}
}

// About returns the page's address, title and scroll position.
func (t *Tab) About(ctx context.Context) (About, error) {
	var raw rawAbout
	err := t.callScript(ctx, &raw, "about")
	return raw.toAbout(), err
}

// State returns the contents of the page. The numbers of elements are valid until the next State.
func (t *Tab) State(ctx context.Context) (State, error) {
	var raw struct {
		rawAbout

		Text     string    `json:"text"`
		Elements []Element `json:"elements"`
		Cut      bool      `json:"cut"`
	}
	if err := t.callScript(ctx, &raw, "state"); err != nil {
		return State{}, err
	}
	s := State{About: raw.toAbout(), Text: cleanText(raw.Text, maxContent), Elements: []Element{}, Cut: raw.Cut || len(raw.Elements) > maxElements}
	for _, e := range raw.Elements[:min(len(raw.Elements), maxElements)] {
		e.Role, e.Name, e.Value, e.Href = cleanText(e.Role, maxName), cleanText(e.Name, maxName), cleanText(e.Value, maxName), cleanText(e.Href, maxName)
		e.Options = e.Options[:min(len(e.Options), 20)]
		for i := range e.Options {
			e.Options[i] = cleanText(e.Options[i], maxName)
		}
		s.Elements = append(s.Elements, e)
	}
	return s, nil
}

// Content returns the text or HTML of the page or an element, and whether it was truncated.
func (t *Tab) Content(ctx context.Context, target Target, html bool) (string, bool, error) {
	var raw struct {
		Text string `json:"text"`
		Cut  bool   `json:"cut"`
	}
	err := t.callScript(ctx, &raw, "content", target, html, maxContent)
	return cleanText(raw.Text, maxContent), raw.Cut, err
}

// pollInterval is the interval at which WaitFor checks the page.
const pollInterval = 200 * time.Millisecond

// WaitFor waits until a visible element matches a selector, or, if selector is "", until the page
// contains a text.
//
// Timeout: the condition was not met within limit.
func (t *Tab) WaitFor(ctx context.Context, selector, text string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		var raw struct {
			Found bool `json:"found"`
		}
		if err := t.callScript(ctx, &raw, "has", selector, text); err != nil || raw.Found {
			return err
		}
		if time.Now().After(end) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "the element or text did not appear within %s", limit), "call browser_state to see the page")
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Picture is a screenshot of a page.
type Picture struct {
	MIME   string
	Data   []byte
	Width  int
	Height int
}

// Screenshot takes a screenshot of the visible part, or of the full page up to 8192 pixels a side
// and 16 million pixels. The format is PNG, or JPEG if the PNG is too large.
//
// Exhausted: both formats are too large.
func (t *Tab) Screenshot(ctx context.Context, full bool) (Picture, error) {
	view := t.b.View()
	width, height := view.Width, view.Height
	if full {
		raw, err := t.callPage(ctx, "Page.getLayoutMetrics", nil)
		var metrics struct {
			Size struct {
				Width  float64 `json:"width"`
				Height float64 `json:"height"`
			} `json:"cssContentSize"`
		}
		if err == nil {
			err = json.Unmarshal(raw, &metrics)
		}
		if err != nil {
			return Picture{}, err
		}
		width = int(min(max(metrics.Size.Width, float64(width)), maxSide))
		height = min(int(min(max(metrics.Size.Height, float64(height)), maxSide)), maxPixels/width)
	}
	for _, format := range []string{"png", "jpeg"} {
		p, err := t.captureImage(ctx, format, width, height)
		if err == nil || sandpit.CodeOf(err) != sandpit.Exhausted {
			return p, err
		}
	}
	return Picture{}, sandpit.Errorf(sandpit.Exhausted, "the screenshot has more than %d bytes", maxPicture)
}

func (t *Tab) captureImage(ctx context.Context, format string, width, height int) (Picture, error) {
	params := object{
		"format": format, "captureBeyondViewport": height > t.b.View().Height || width > t.b.View().Width,
	}
	if format == "jpeg" {
		params["quality"] = 75
	}
	if params["captureBeyondViewport"] == true {
		params["clip"] = object{"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
	}
	raw, err := t.callPage(ctx, "Page.captureScreenshot", params)
	if err != nil {
		return Picture{}, err
	}
	var came struct {
		Data []byte `json:"data"` // Base64
	}
	if err := json.Unmarshal(raw, &came); err != nil {
		return Picture{}, sandpit.Errorf(sandpit.Internal, "decode the browser's screenshot: %w", err)
	}
	return checkPicture(came.Data, format)
}

// checkPicture checks the format, the size and the completeness of a screenshot.
func checkPicture(data []byte, format string) (Picture, error) {
	if len(data) > maxPicture {
		return Picture{}, sandpit.Errorf(sandpit.Exhausted, "the screenshot has %d bytes", len(data))
	}
	head, kind, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || kind != format || head.Width > maxSide || head.Height > maxSide || head.Width*head.Height > maxPixels {
		return Picture{}, sandpit.Errorf(sandpit.Internal, "the browser's screenshot is not a %s of an allowed size (%v)", format, err)
	}
	if _, _, err := image.Decode(bytes.NewReader(data)); err != nil {
		return Picture{}, sandpit.Errorf(sandpit.Internal, "decode the browser's screenshot: %w", err)
	}
	return Picture{MIME: "image/" + format, Data: data, Width: head.Width, Height: head.Height}, nil
}
