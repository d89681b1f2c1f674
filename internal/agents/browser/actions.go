package browser

import (
	"context"
	"maps"

	"github.com/sandpit-dev/sandpit"
)

// Point is a position in the window, in pixels from its upper left corner.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Click describes a mouse click.
type Click struct {
	// Button is left, middle or right; Count is 2 for a double click.
	Button string
	Count  int
}

// LeftClick returns a single click with the left button.
func LeftClick() Click { return Click{Button: "left", Count: 1} }

// Click scrolls to an element, clicks it, and returns its description, which is untrusted text of
// the page.
//
// NotFound: no such element. Conflict: it is not visible, or covered by another element.
func (t *Tab) Click(ctx context.Context, target Target, c Click) (string, error) {
	p, told, err := t.scrollTo(ctx, target)
	if err != nil {
		return "", err
	}
	return told, t.ClickAt(ctx, p, c)
}

// scrollTo scrolls to an element and returns its position and description.
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

// ClickAt clicks at a position. Invalid: it is outside of the window.
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

// Move moves the mouse. Invalid: the position is outside of the window.
func (t *Tab) Move(ctx context.Context, at Point) error {
	return t.dispatchMouse(ctx, "mouseMoved", at, nil)
}

func (t *Tab) dispatchMouse(ctx context.Context, kind string, at Point, more object) error {
	if v := t.b.View(); at.X < 0 || at.Y < 0 || at.X >= float64(v.Width) || at.Y >= float64(v.Height) {
		return sandpit.Errorf(sandpit.Invalid, "position %g, %g is outside of the window of %d x %d pixels", at.X, at.Y, v.Width, v.Height)
	}
	params := object{"type": kind, "x": at.X, "y": at.Y, "modifiers": t.heldKeys()}
	maps.Copy(params, more)
	_, err := t.callPage(ctx, "Input.dispatchMouseEvent", params)
	return err
}

// dragSteps is the number of mouse moves of a drag: pages react to intermediate moves.
const dragSteps = 10

// Drag presses the left button at one position and releases it at another.
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

// Wheel turns the mouse wheel at a position.
func (t *Tab) Wheel(ctx context.Context, at Point, dx, dy float64) error {
	if err := t.dispatchMouse(ctx, "mouseWheel", at, object{"deltaX": dx, "deltaY": dy}); err != nil {
		return err
	}
	return t.Settle(ctx)
}

// Scroll scrolls by an amount of pixels, or by pages if amount is 0. Negative values scroll up.
func (t *Tab) Scroll(ctx context.Context, amount, pages float64) (Scroll, error) {
	var raw rawScroll
	err := t.callScript(ctx, &raw, "scroll", amount, pages)
	return Scroll(raw), err
}

// ScrollTo scrolls to a text. NotFound: the page does not contain it.
func (t *Tab) ScrollTo(ctx context.Context, text string) (Scroll, error) {
	var raw rawScroll
	err := t.callScript(ctx, &raw, "toText", text)
	return Scroll(raw), err
}

// Fill replaces the text of a field.
//
// NotFound: no such element. Invalid: it is not a field, or does not accept the text. Conflict: it
// is read-only or disabled.
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

// Type inserts text at the page's focus.
func (t *Tab) Type(ctx context.Context, text string) error {
	_, err := t.callPage(ctx, "Input.insertText", object{"text": text})
	return err
}

// Option is an option of a drop-down list.
type Option struct {
	Index    int    `json:"index"`
	Text     string `json:"text"`
	Value    string `json:"value"`
	Selected bool   `json:"selected,omitempty"`
}

// Options returns the options of a drop-down list.
//
// NotFound: no such element. Invalid: it is not a drop-down list.
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

// Select selects an option by its text or value.
//
// NotFound: no such element or option. Invalid: it is not a drop-down list. Conflict: the option
// is disabled.
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
