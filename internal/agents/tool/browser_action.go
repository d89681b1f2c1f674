package tool

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/agents/browser"
)

type actionInput struct {
	Action   string   `json:"action_type" jsonschema:"what to do" enum:"click,double_click,right_click,move_to,move_rel,drag_to,drag_rel,scroll,typing,press,key_down,key_up,hotkey,wait"`
	X        *float64 `json:"x,omitempty" jsonschema:"pixels from the left; default: the mouse position"`
	Y        *float64 `json:"y,omitempty" jsonschema:"pixels from the top; default: the mouse position"`
	DeltaX   float64  `json:"delta_x,omitempty" jsonschema:"pixels to the right, for move_rel, drag_rel and scroll" default:"0"`
	DeltaY   float64  `json:"delta_y,omitempty" jsonschema:"pixels down, for move_rel, drag_rel and scroll" default:"0"`
	Text     string   `json:"text,omitempty" jsonschema:"text to type"`
	Key      string   `json:"key,omitempty" jsonschema:"the key, for press, key_down and key_up"`
	Keys     []string `json:"keys,omitempty" jsonschema:"the keys, for hotkey"`
	Duration float64  `json:"duration,omitempty" jsonschema:"seconds, for wait" default:"1" range:"0,60"`
}

func browserAction(ctx context.Context, s *Session, in actionInput) (Result, error) {
	return s.withBrowser(ctx, func(_ *browser.Browser, t *browser.Tab) (Result, error) {
		if err := s.performAction(ctx, t, in); err != nil {
			return Result{}, err
		}
		return actionResult(ctx, t, "Done: "+in.Action)
	})
}

// performAction performs one action of the mouse or the keyboard.
func (s *Session) performAction(ctx context.Context, t *browser.Tab, in actionInput) error {
	switch in.Action {
	case "typing":
		if in.Text == "" {
			return errMissing("text", in.Action)
		}
		return t.Type(ctx, in.Text)
	case "press", "key_down", "key_up":
		if in.Key == "" {
			return errMissing("key", in.Action)
		}
		return map[string]func(context.Context, string) error{"press": t.Press, "key_down": t.Hold, "key_up": t.Release}[in.Action](ctx, in.Key)
	case "hotkey":
		if len(in.Keys) == 0 || len(in.Keys) > 5 {
			return errMissing("keys (1 to 5)", in.Action)
		}
		return t.Hotkey(ctx, in.Keys)
	case "wait":
		return sleep(ctx, in.Duration)
	}
	return s.pointMouse(ctx, t, in)
}

// pointMouse performs one action of the mouse and records its position.
func (s *Session) pointMouse(ctx context.Context, t *browser.Tab, in actionInput) error {
	if (in.X == nil) != (in.Y == nil) {
		return errMissing("x and y", in.Action)
	}
	from := s.browsing.mouse
	to := from
	if in.X != nil {
		to = browser.Point{X: *in.X, Y: *in.Y}
	}
	if strings.HasSuffix(in.Action, "_rel") {
		to = browser.Point{X: from.X + in.DeltaX, Y: from.Y + in.DeltaY}
	} else if in.X == nil && slices.Contains([]string{"move_to", "drag_to"}, in.Action) {
		return errMissing("x and y", in.Action)
	}
	if err := s.moveOrClick(ctx, t, in, from, to); err != nil {
		return err
	}
	s.browsing.mouse = to
	return nil
}

func (s *Session) moveOrClick(ctx context.Context, t *browser.Tab, in actionInput, from, to browser.Point) error {
	switch in.Action {
	case "double_click":
		return t.ClickAt(ctx, to, browser.Click{Button: "left", Count: 2})
	case "right_click":
		return t.ClickAt(ctx, to, browser.Click{Button: "right", Count: 1})
	case "move_to", "move_rel":
		return t.Move(ctx, to)
	case "drag_to", "drag_rel":
		return t.Drag(ctx, from, to)
	case "scroll":
		return t.Wheel(ctx, to, in.DeltaX, in.DeltaY)
	}
	return t.ClickAt(ctx, to, browser.LeftClick())
}

func sandboxBrowser() Tool {
	return Tool{
		Name: "sandbox_browser", Title: "Use the browser", Hints: Hints{Destructive: true, OpenWorld: true},
		Description: "Control the browser with one tool: open pages, click and fill in elements by number, scroll, switch pages. " +
			"Each result has the page's contents and a screenshot.",
		function: newFunction(compoundBrowser),
	}
}

type compoundInput struct {
	Action     string   `json:"action" jsonschema:"what to do" enum:"navigate_to,go_back,wait,click_element,input_text,send_keys,switch_tab,close_tab,scroll_down,scroll_up,scroll_to_text,get_dropdown_options,select_dropdown_option,click_coordinates,drag_drop,get_current_state"`
	URL        string   `json:"url,omitempty" jsonschema:"address, for navigate_to"`
	Index      *int     `json:"index,omitempty" jsonschema:"number of the element" range:"0,"`
	Text       *string  `json:"text,omitempty" jsonschema:"for input_text (empty clears the field), scroll_to_text and select_dropdown_option"`
	Amount     int      `json:"amount,omitempty" jsonschema:"pixels to scroll; default: almost the height of the window" range:"0,1000000"`
	Page       *int     `json:"page_id,omitempty" jsonschema:"number of the page, for switch_tab and close_tab" range:"0,"`
	Keys       string   `json:"keys,omitempty" jsonschema:"for send_keys: Enter, Control+a"`
	Seconds    float64  `json:"seconds,omitempty" jsonschema:"for wait" default:"3" range:"0,300"`
	X          *float64 `json:"x,omitempty" jsonschema:"for click_coordinates: pixels from the left"`
	Y          *float64 `json:"y,omitempty" jsonschema:"for click_coordinates: pixels from the top"`
	Source     string   `json:"element_source,omitempty" jsonschema:"for drag_drop: number or CSS selector of the element to drag"`
	Target     string   `json:"element_target,omitempty" jsonschema:"for drag_drop: number or CSS selector of the target element"`
	Screenshot *bool    `json:"screenshot,omitempty" jsonschema:"add a screenshot" default:"true"`
}

type compoundData struct {
	Success  bool              `json:"success"`
	Message  string            `json:"message"`
	URL      string            `json:"url"`
	Title    string            `json:"title"`
	Elements int               `json:"element_count"`
	Above    int               `json:"pixels_above"`
	Below    int               `json:"pixels_below"`
	Tabs     []browser.TabInfo `json:"tabs"`
	Options  []browser.Option  `json:"options,omitempty"`
}

func compoundBrowser(ctx context.Context, s *Session, in compoundInput) (Result, error) {
	if field := in.missingField(); field != "" {
		return Result{}, errMissing(field, in.Action)
	}
	if in.Action == "navigate_to" {
		address, err := s.checkAddress(ctx, in.URL)
		if err != nil {
			return Result{}, err
		}
		in.URL = address
	}
	return s.withBrowser(ctx, func(b *browser.Browser, t *browser.Tab) (Result, error) {
		message, options, err := in.perform(ctx, b, t)
		if err != nil {
			return Result{}, err
		}
		if t, err = b.Tab(ctx); err != nil { // the action may have switched pages
			return Result{}, err
		}
		r, state, err := pageResult(ctx, t, briefSize, in.Screenshot == nil || *in.Screenshot)
		if err != nil {
			return r, err
		}
		r.Text = message + "\n" + r.Text
		if tabs := b.Tabs(); len(tabs) > 1 {
			r.Text += "\n\nOpen pages:\n" + tabsText(tabs)
		}
		r.Data = compoundData{
			Success: true, Message: s.secretSet().truncateText(message), URL: state.URL, Title: state.Title, Elements: len(state.Elements),
			Above: state.Above, Below: state.Below, Tabs: b.Tabs(), Options: options,
		}
		return r, nil
	})
}

// missingField returns a field that the action requires and the input lacks, or "".
func (in compoundInput) missingField() string {
	given := map[string]bool{
		"url": in.URL != "", "index": in.Index != nil, "text": in.Text != nil, "page_id": in.Page != nil, "keys": in.Keys != "",
		"x": in.X != nil, "y": in.Y != nil, "element_source": in.Source != "", "element_target": in.Target != "",
	}
	needed := map[string][]string{
		"navigate_to": {"url"}, "click_element": {"index"}, "input_text": {"index", "text"}, "send_keys": {"keys"}, "switch_tab": {"page_id"},
		"close_tab": {"page_id"}, "scroll_to_text": {"text"}, "get_dropdown_options": {"index"}, "select_dropdown_option": {"index", "text"},
		"click_coordinates": {"x", "y"}, "drag_drop": {"element_source", "element_target"},
	}
	for _, field := range needed[in.Action] {
		if !given[field] {
			return field
		}
	}
	return ""
}

// perform performs the action and returns a description of it.
func (in compoundInput) perform(ctx context.Context, b *browser.Browser, t *browser.Tab) (string, []browser.Option, error) {
	target := browser.Target{Index: in.Index}
	switch in.Action {
	case "navigate_to":
		_, err := t.Navigate(ctx, in.URL, navigateTimeout)
		return "Opened the page", nil, err
	case "go_back":
		return "Went back", nil, t.Back(ctx, -1)
	case "wait":
		return "Waited", nil, sleep(ctx, in.Seconds)
	case "click_element":
		told, err := t.Click(ctx, target, browser.LeftClick())
		return "Clicked " + told, nil, err
	case "input_text":
		return "Filled in", nil, t.Fill(ctx, target, *in.Text)
	case "send_keys":
		return "Pressed " + in.Keys, nil, t.Press(ctx, in.Keys)
	case "switch_tab":
		return "Switched to page " + strconv.Itoa(*in.Page), nil, b.Switch(ctx, *in.Page)
	case "close_tab":
		return "Closed page " + strconv.Itoa(*in.Page), nil, b.CloseTab(ctx, *in.Page)
	case "get_dropdown_options":
		r, err := listOptions(ctx, t, target)
		data, _ := r.Data.(optionsData) // nil after an error
		return r.Text, data.Options, err
	case "select_dropdown_option":
		return "Selected " + *in.Text, nil, t.Select(ctx, target, *in.Text)
	case "click_coordinates":
		return "Clicked", nil, t.ClickAt(ctx, browser.Point{X: *in.X, Y: *in.Y}, browser.LeftClick())
	case "drag_drop":
		return "Dragged", nil, t.DragElement(ctx, toTarget(in.Source), toTarget(in.Target))
	case "scroll_down", "scroll_up", "scroll_to_text":
		move := scrollInput{Amount: in.Amount, Direction: strings.TrimPrefix(in.Action, "scroll_")}
		if in.Action == "scroll_to_text" {
			move.Text = *in.Text
		}
		r, err := scrollPage(ctx, t, move)
		return r.Text, nil, err
	}
	return "Current page", nil, nil // get_current_state
}

// toTarget returns the target for a number or a selector.
func toTarget(text string) browser.Target {
	if index, err := strconv.Atoi(text); err == nil {
		return browser.Target{Index: &index}
	}
	return browser.Target{Selector: text}
}
