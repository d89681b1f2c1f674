package browser

import (
	"context"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// key is what a key of a keyboard is to a page.
type key struct {
	name string // as pages know it: KeyboardEvent.key
	code string // KeyboardEvent.code
	id   int    // KeyboardEvent.keyCode
	text string // what it writes
}

// modifierBits are keys that change what others do, with their bits in the protocol.
func modifierBits() map[string]int {
	return map[string]int{"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
}

// names of keys, in lower case, as people write them.
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

// findKey finds a key: by its name, or the character that it writes. Invalid.
func findKey(name string) (key, error) {
	if k, known := namedKeys()[strings.ToLower(name)]; known {
		return k, nil
	}
	r, size := utf8.DecodeRuneInString(name)
	if size == 0 || size != len(name) || r == utf8.RuneError {
		return key{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "there is no key %.40q", name), "keys are named Enter, Tab, ArrowDown, F5, a …; several at once Control+a")
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

// splitChord takes Control+Shift+a apart.
func splitChord(text string) ([]string, error) {
	if text == "+" {
		return []string{"+"}, nil
	}
	names := strings.Split(text, "+")
	if strings.HasSuffix(text, "++") { // Control++
		names = append(names[:len(names)-2], "+")
	}
	if len(names) > 5 {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d keys at once are too many", len(names))
	}
	return names, nil
}

// Press presses keys at once and releases them: "Enter", "Control+a".
//
// Invalid: there is no such key.
func (t *Tab) Press(ctx context.Context, text string) error {
	names, err := splitChord(text)
	if err != nil {
		return err
	}
	return t.Hotkey(ctx, names)
}

// Hotkey presses keys one after the other and releases them in the opposite order.
//
// Invalid: there is no such key.
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
			continue // Hold has pressed it, and only Release releases it
		}
		held &^= modifierBits()[k.name]
		if err := t.releaseKey(ctx, k, held); err != nil {
			return err
		}
	}
	return t.Settle(ctx)
}

// Hold presses a key and does not release it: Alt, Control, Meta and Shift then count for all
// keys and clicks in this tab. Invalid.
func (t *Tab) Hold(ctx context.Context, name string) error {
	k, err := findKey(name)
	if err != nil {
		return err
	}
	return t.pressKey(ctx, k, t.updateHeld(func(held int) int { return held | modifierBits()[k.name] }))
}

// Release releases a key. Invalid.
func (t *Tab) Release(ctx context.Context, name string) error {
	k, err := findKey(name)
	if err != nil {
		return err
	}
	return t.releaseKey(ctx, k, t.updateHeld(func(held int) int { return held &^ modifierBits()[k.name] }))
}

// heldKeys are the bits of the modifiers that Hold has pressed.
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

// withModifiers is what a key writes while modifiers are held. With another modifier than Shift it is
// a command and writes nothing. The layout of other keys than letters is not known here.
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
