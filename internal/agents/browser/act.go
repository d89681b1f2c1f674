package browser

import (
	"context"
	"maps"

	"github.com/sandpit-dev/sandpit"
)

// Point is a place in the window, in pixels from its upper left corner.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Click is how an element is clicked.
type Click struct {
	// Button is left, middle or right, Count how often.
	Button string
	Count  int
}

// LeftClick is the usual one.
func LeftClick() Click { return Click{Button: "left", Count: 1} }

// Click clicks an element, which is scrolled to, and returns what it is. The text that it
// returns is the page's.
//
// NotFound. Conflict: it is not visible, or covered by another one.
func (t *Tab) Click(ctx context.Context, target Target, c Click) (string, error) {
	p, told, err := t.scrollTo(ctx, target)
	if err != nil {
		return "", err
	}
	return told, t.ClickAt(ctx, p, c)
}

// scrollTo scrolls to an element and tells where it is.
func (t *Tab) scrollTo(ctx context.Context, target Target) (Point, string, error) {
	if err := target.checkTarget(); err != nil {
		return Point{}, "", err
	}
	var raw struct {
		Point

		Told string `json:"told"`
	}
	err := t.callScript(ctx, &raw, "point", target)
	return raw.Point, cleanText(raw.Told, maxName), err
}

// ClickAt clicks at a place. Invalid: it is outside of the window.
func (t *Tab) ClickAt(ctx context.Context, at Point, c Click) error {
	if err := t.Move(ctx, at); err != nil {
		return err
	}
	for count := 1; count <= c.Count; count++ {
		for _, kind := range []string{"mousePressed", "mouseReleased"} {
			if err := t.dispatchMouse(ctx, kind, at, object{"button": c.Button, "clickCount": count}); err != nil {
				return err
			}
		}
	}
	return t.Settle(ctx)
}

// Move moves the mouse. Invalid: the place is outside of the window.
func (t *Tab) Move(ctx context.Context, at Point) error {
	return t.dispatchMouse(ctx, "mouseMoved", at, nil)
}

func (t *Tab) dispatchMouse(ctx context.Context, kind string, at Point, more object) error {
	if v := t.b.View(); at.X < 0 || at.Y < 0 || at.X >= float64(v.Width) || at.Y >= float64(v.Height) {
		return sandpit.Errorf(sandpit.Invalid, "the place %g, %g is outside of the window, which has %d x %d pixels", at.X, at.Y, v.Width, v.Height)
	}
	params := object{"type": kind, "x": at.X, "y": at.Y, "modifiers": t.heldKeys()}
	maps.Copy(params, more)
	_, err := t.callPage(ctx, "Input.dispatchMouseEvent", params)
	return err
}

// dragSteps is in how many moves something is dragged: pages look at those between.
const dragSteps = 10

// Drag presses the left button at one place and releases it at another.
func (t *Tab) Drag(ctx context.Context, from, to Point) error {
	if err := t.Move(ctx, from); err != nil {
		return err
	}
	if err := t.dispatchMouse(ctx, "mousePressed", from, object{"button": "left", "clickCount": 1}); err != nil {
		return err
	}
	for i := 1; i <= dragSteps; i++ {
		part := float64(i) / dragSteps
		at := Point{from.X + (to.X-from.X)*part, from.Y + (to.Y-from.Y)*part}
		if err := t.dispatchMouse(ctx, "mouseMoved", at, object{"button": "left", "buttons": 1}); err != nil {
			return err
		}
	}
	if err := t.dispatchMouse(ctx, "mouseReleased", to, object{"button": "left", "clickCount": 1}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// DragElement drags an element onto another. Errors as Click.
func (t *Tab) DragElement(ctx context.Context, source, target Target) error {
	if _, _, err := t.scrollTo(ctx, source); err != nil {
		return err
	}
	to, _, err := t.scrollTo(ctx, target)
	if err != nil {
		return err
	}
	from, _, err := t.scrollTo(ctx, source)
	if err != nil {
		return err
	}
	return t.Drag(ctx, from, to)
}

// Wheel turns the mouse's wheel at a place.
func (t *Tab) Wheel(ctx context.Context, at Point, dx, dy float64) error {
	if err := t.dispatchMouse(ctx, "mouseWheel", at, object{"deltaX": dx, "deltaY": dy}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// Scroll scrolls by an amount of pixels, or, if it is 0, by pages. Negative is up.
func (t *Tab) Scroll(ctx context.Context, amount, pages float64) (Scroll, error) {
	var raw rawScroll
	err := t.callScript(ctx, &raw, "scroll", amount, pages)
	return Scroll(raw), err
}

// ScrollTo scrolls to a text. NotFound.
func (t *Tab) ScrollTo(ctx context.Context, text string) (Scroll, error) {
	var raw rawScroll
	err := t.callScript(ctx, &raw, "toText", text)
	return Scroll(raw), err
}

// Fill replaces what a field holds.
//
// NotFound. Invalid: it is no field, or takes no such text. Conflict: it cannot be changed.
func (t *Tab) Fill(ctx context.Context, target Target, text string) error {
	if err := target.checkTarget(); err != nil {
		return err
	}
	var raw struct {
		Done  bool `json:"done"`
		Empty bool `json:"empty"`
	}
	if err := t.callScript(ctx, &raw, "fill", target, text); err != nil || raw.Done {
		return err
	}
	if text != "" {
		return t.Type(ctx, text)
	}
	if raw.Empty {
		return nil
	}
	return t.Press(ctx, "Delete")
}

// Type puts text where the page's focus is.
func (t *Tab) Type(ctx context.Context, text string) error {
	_, err := t.callPage(ctx, "Input.insertText", object{"text": text})
	return err
}

// Option is one of a list to select from.
type Option struct {
	Index    int    `json:"index"`
	Text     string `json:"text"`
	Value    string `json:"value"`
	Selected bool   `json:"selected,omitempty"`
}

// Options lists what can be selected. NotFound. Invalid: the element is no list.
func (t *Tab) Options(ctx context.Context, target Target) ([]Option, error) {
	if err := target.checkTarget(); err != nil {
		return nil, err
	}
	var raw struct {
		Options []Option `json:"options"`
	}
	err := t.callScript(ctx, &raw, "options", target)
	options := raw.Options[:min(len(raw.Options), 1000)]
	for i := range options {
		options[i].Text, options[i].Value = cleanText(options[i].Text, maxName), cleanText(options[i].Value, maxName)
	}
	return options, err
}

// Select selects an option by its text or value. NotFound. Invalid: the element is no
// list. Conflict: it cannot be selected.
func (t *Tab) Select(ctx context.Context, target Target, option string) error {
	if err := target.checkTarget(); err != nil {
		return err
	}
	var raw struct{}
	if err := t.callScript(ctx, &raw, "choose", target, option); err != nil {
		return err
	}
	return t.Settle(ctx)
}
