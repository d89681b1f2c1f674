package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	_ "image/jpeg" // pictures that are too large as PNG
	_ "image/png"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// maxContent is how much of a page's text is taken, in bytes or so.
	maxContent = 1 << 20
	// maxElements and maxName bound what is told of a page.
	maxElements = 500
	maxName     = 400
	// maxPicture is the largest picture, in bytes, maxSide and maxPixels in pixels.
	maxPicture = 10 << 20
	maxSide    = 8192
	maxPixels  = 16 << 20
)

// Target says which element is meant: by its number in the last State, by a CSS selector,
// or by its text.
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
		return sandpit.Errorf(sandpit.Invalid, "say which element: by one of index, selector and text")
	}
	return nil
}

// About is where a page is.
type About struct {
	URL   string `json:"url"`
	Title string `json:"title"`
	// Status is what the server has answered, 0 if that is not known.
	Status int `json:"status,omitempty"`
	Width  int `json:"width"`
	Height int `json:"height"`
	Scroll
}

// Scroll is how much there is above and below of what is shown, in pixels.
type Scroll struct {
	Above int `json:"pixels_above"`
	Below int `json:"pixels_below"`
}

// Element is something on a page that can be acted on.
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

// State is what is on a page.
type State struct {
	About
	// Text is the page as it reads, with the numbers of elements.
	Text     string    `json:"-"`
	Elements []Element `json:"elements"`
	// Cut is true if there is more.
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

// About tells where the page is.
func (t *Tab) About(ctx context.Context) (About, error) {
	var raw rawAbout
	err := t.callScript(ctx, &raw, "about")
	return raw.toAbout(), err
}

// State tells what is on the page. Its elements have numbers until the next State.
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

// Content is the text of the page or of an element, or its HTML, and whether there is more.
func (t *Tab) Content(ctx context.Context, target Target, html bool) (string, bool, error) {
	var raw struct {
		Text string `json:"text"`
		Cut  bool   `json:"cut"`
	}
	err := t.callScript(ctx, &raw, "content", target, html, maxContent)
	return cleanText(raw.Text, maxContent), raw.Cut, err
}

// pollInterval is how often a page is asked whether something is there.
const pollInterval = 200 * time.Millisecond

// WaitFor waits until something on the page matches a selector and is visible, or, if it
// is "", until the page has a text.
//
// Timeout: that was not so within limit.
func (t *Tab) WaitFor(ctx context.Context, selector, text string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		var raw struct {
			Found bool `json:"found"`
		}
		if err := t.callScript(ctx, &raw, "has", selector, text); err != nil || raw.Found {
			return err
		}
		if time.Now().After(end) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "it has not come within %s", limit), "browser_state tells what is there")
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Picture is a picture of a page.
type Picture struct {
	MIME   string
	Data   []byte
	Width  int
	Height int
}

// Screenshot takes a picture of what is shown, or of the full page as far as 8192 pixels
// and 16 million of them in all go. It is a PNG, or a JPEG if that would be too large.
//
// Exhausted: it is too large in every form.
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
	return Picture{}, sandpit.Errorf(sandpit.Exhausted, "a picture of the page has more than %d bytes", maxPicture)
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
		return Picture{}, sandpit.Errorf(sandpit.Internal, "the browser's picture: %w", err)
	}
	return checkPicture(came.Data, format)
}

// checkPicture is a picture that is one: of the format, as large as is allowed, and complete.
func checkPicture(data []byte, format string) (Picture, error) {
	if len(data) > maxPicture {
		return Picture{}, sandpit.Errorf(sandpit.Exhausted, "the picture has %d bytes", len(data))
	}
	head, kind, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || kind != format || head.Width > maxSide || head.Height > maxSide || head.Width*head.Height > maxPixels {
		return Picture{}, sandpit.Errorf(sandpit.Internal, "the browser's picture is no %s of an allowed size (%v)", format, err)
	}
	if _, _, err := image.Decode(bytes.NewReader(data)); err != nil {
		return Picture{}, sandpit.Errorf(sandpit.Internal, "the browser's picture: %w", err)
	}
	return Picture{MIME: "image/" + format, Data: data, Width: head.Width, Height: head.Height}, nil
}
