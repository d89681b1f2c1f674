package browser

import (
	"context"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// key is a key of a keyboard as pages see it.
type key struct {
	name string // KeyboardEvent.key
	code string // KeyboardEvent.code
	id   int    // KeyboardEvent.keyCode
	text string // the text that it inserts
}

// modifierBits returns the modifier keys with their bits in the protocol.
func modifierBits() map[string]int {
	return map[string]int{"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
}

// namedKeys returns keys by their usual names in lower case.
func namedKeys() map[string]key {
	named := map[string]key{
		"enter": {"Enter", "Enter", 13, "\r"}, "tab": {"Tab", "Tab", 9, ""}, "backspace": {"Backspace", "Backspace", 8, ""},
		"delete": {"Delete", "Delete", 46, ""}, "escape": {"Escape", "Escape", 27, ""}, "space": {" ", "Space", 32, " "},
		"arrowleft": {"ArrowLeft", "ArrowLeft", 37, ""}, "arrowup": {"ArrowUp", "ArrowUp", 38, ""},
		"arrowright": {"ArrowRight", "ArrowRight", 39, ""}, "arrowdown": {"ArrowDown", "ArrowDown", 40, ""},
		"home": {"Home", "Home", 36, ""}, "end": {"End", "End", 35, ""}, "pageup": {"PageUp", "PageUp", 33, ""},
		"pagedown": {"PageDown", "PageDown", 34, ""}, "insert": {"Insert", "Insert", 45, ""},
		"shift": {"Shift", "ShiftLeft", 16, ""}, "control": {"Control", "ControlLeft", 17, ""}, "alt": {"Alt", "AltLeft", 18, ""},
		"meta": {"Meta", "MetaLeft", 91, ""},
	}
	for i, name := range []string{"F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10", "F11", "F12"} {
		named[strings.ToLower(name)] = key{name, name, 112 + i, ""}
	}
	for other, name := range map[string]string{
		"return": "enter", "esc": "escape", "del": "delete", "ctrl": "control", "cmd": "meta", "command": "meta", "option": "alt",
		"left": "arrowleft", "right": "arrowright", "up": "arrowup", "down": "arrowdown", "ins": "insert", "pgup": "pageup", "pgdn": "pagedown", "spacebar": "space",
	} {
		named[other] = named[name]
	}
	return named
}

// findKey returns a key by its name or by the character that it inserts. Invalid: unknown key.
func findKey(name string) (key, error) {
	if k, known := namedKeys()[strings.ToLower(name)]; known {
		return k, nil
	}
	r, size := utf8.DecodeRuneInString(name)
	if size == 0 || size != len(name) || r == utf8.RuneError {
		return key{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "unknown key %.40q", name), "use names such as Enter, Tab, ArrowDown, F5 or a; combine keys as in Control+a")
	}
	k := key{name: name, text: name}
	switch upper := unicode.ToUpper(r); {
	case upper >= 'A' && upper <= 'Z':
		k.code, k.id = "Key"+string(upper), int(upper)
	case r >= '0' && r <= '9':
		k.code, k.id = "Digit"+name, int(r)
	}
	return k, nil
}

// splitChord splits a combination such as Control+Shift+a.
func splitChord(text string) ([]string, error) {
	if text == "+" {
		return []string{"+"}, nil
	}
	names := strings.Split(text, "+")
	if strings.HasSuffix(text, "++") { // Control++
		names = append(names[:len(names)-2], "+")
	}
	if len(names) > 5 {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d keys in one combination; the limit is 5", len(names))
	}
	return names, nil
}

// Press presses and releases a key or a combination: "Enter", "Control+a".
//
// Invalid: unknown key.
func (t *Tab) Press(ctx context.Context, text string) error {
	names, err := splitChord(text)
	if err != nil {
		return err
	}
	return t.Hotkey(ctx, names)
}

// Hotkey presses keys in order and releases them in the reverse order.
//
// Invalid: unknown key.
func (t *Tab) Hotkey(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return sandpit.Errorf(sandpit.Invalid, "no keys are given")
	}
	var pressed []key
	for _, name := range names {
		k, err := findKey(name)
		if err != nil {
			return err
		}
		pressed = append(pressed, k)
	}
	held := t.heldKeys()
	for _, k := range pressed {
		held |= modifierBits()[k.name]
		if err := t.pressKey(ctx, k, held); err != nil {
			return err
		}
	}
	for _, k := range slices.Backward(pressed) {
		if t.heldKeys()&modifierBits()[k.name] != 0 {
			continue // pressed by Hold; only Release releases it
		}
		held &^= modifierBits()[k.name]
		if err := t.releaseKey(ctx, k, held); err != nil {
			return err
		}
	}
	return t.Settle(ctx)
}

// Hold presses a key without releasing it: Alt, Control, Meta and Shift then apply to all keys and
// clicks in this tab. Invalid: unknown key.
func (t *Tab) Hold(ctx context.Context, name string) error {
	k, err := findKey(name)
	if err != nil {
		return err
	}
	return t.pressKey(ctx, k, t.updateHeld(func(held int) int { return held | modifierBits()[k.name] }))
}

// Release releases a key. Invalid: unknown key.
func (t *Tab) Release(ctx context.Context, name string) error {
	k, err := findKey(name)
	if err != nil {
		return err
	}
	return t.releaseKey(ctx, k, t.updateHeld(func(held int) int { return held &^ modifierBits()[k.name] }))
}

// heldKeys returns the bits of the modifiers that Hold has pressed.
func (t *Tab) heldKeys() int { return t.updateHeld(func(held int) int { return held }) }

func (t *Tab) updateHeld(change func(held int) int) int {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.heldModifiers = change(t.heldModifiers)
	return t.heldModifiers
}

const (
	shift = 8
	// capitalOffset is the difference between a small letter and its capital, in ASCII.
	capitalOffset = 'a' - 'A'
)

// withModifiers returns the key with the text that it inserts while modifiers are pressed. With a
// modifier other than Shift it inserts nothing. Shift changes only letters.
func (k key) withModifiers(held int) key {
	switch {
	case held&^shift != 0:
		k.text = ""
	case held&shift != 0 && len(k.name) == 1 && k.name[0] >= 'a' && k.name[0] <= 'z':
		k.name = string(rune(k.name[0] - capitalOffset))
		k.text = k.name
	}
	return k
}

func (t *Tab) pressKey(ctx context.Context, k key, held int) error {
	k = k.withModifiers(held)
	params := k.eventParams("keyDown", held)
	if k.text != "" {
		params["text"] = k.text
	} else {
		params["type"] = "rawKeyDown"
	}
	_, err := t.callPage(ctx, "Input.dispatchKeyEvent", params)
	return err
}

func (t *Tab) releaseKey(ctx context.Context, k key, held int) error {
	_, err := t.callPage(ctx, "Input.dispatchKeyEvent", k.withModifiers(held).eventParams("keyUp", held))
	return err
}

func (k key) eventParams(kind string, held int) object {
	return object{"type": kind, "key": k.name, "code": k.code, "windowsVirtualKeyCode": k.id, "modifiers": held}
}
