package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// jsonBuffer is how much of an answer is collected before it is sent, in bytes.
const jsonBuffer = 32 << 10

// ReserveResponse takes the memory of a value, and of its text, from the account of a request
// until that ends: the client decides when it reads the answer. Small values cost nothing.
//
// Exhausted: there is no memory for it.
func ReserveResponse(ctx context.Context, value any) error {
	account := memory.AccountOf(ctx)
	if account == nil {
		return nil
	}
	size := memory.SizeOf(value)
	if size <= jsonBuffer {
		return nil
	}
	return account.Reserve(answerCost * size)
}

// answerCost is how many bytes each byte of a large answer takes: as a value, and as text.
const answerCost = 2

// WriteJSON answers with a value, which is taken from the request's account. Lists are encoded
// one element at a time, so that a client that reads slowly keeps little text in memory; what
// is encoded as a whole is taken from the account while it is being sent.
//
// An error says that nothing was sent yet, and is to be the answer. Exhausted: there is no
// memory for it.
func WriteJSON(w http.ResponseWriter, r *http.Request, status int, value any) error {
	if err := ReserveResponse(r.Context(), value); err != nil {
		return err
	}
	list, text, err := splitList(value, json.Marshal)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "encode the answer: %w", err)
	}
	if size := int64(len(text[0])); size > jsonBuffer {
		account := memory.AccountOf(r.Context())
		if err := account.Reserve(size); err != nil {
			return err
		}
		defer account.Return(size)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeList(w, list, text, json.Marshal) // the client has gone
	return nil
}

// EncodeJSON writes a value, lists one element at a time, and leaves characters that HTML
// has a use for as they are.
func EncodeJSON(w io.Writer, value any) error {
	list, text, err := splitList(value, marshalPlain)
	if err != nil {
		return err
	}
	return writeList(w, list, text, marshalPlain)
}

// marshalPlain is json.Marshal without a regard for HTML.
func marshalPlain(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// emptyList is what the lists are looked for by, in what was encoded without them.
var emptyList = []byte(`"items":[]`)

// splitList returns the list in a value, if it is a list or a page of one, and the text
// before and behind its elements. Of another value the list is not valid.
func splitList(value any, marshal func(any) ([]byte, error)) (list reflect.Value, text [2][]byte, err error) {
	v := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8 && !v.IsNil():
		return v, [2][]byte{[]byte("["), []byte("]")}, nil
	case v.Kind() == reflect.Struct:
		if items := v.FieldByName("Items"); items.IsValid() && items.Kind() == reflect.Slice && items.Len() > 0 {
			rest := reflect.New(v.Type()).Elem()
			rest.Set(v)
			rest.FieldByName("Items").Set(reflect.MakeSlice(items.Type(), 0, 0))
			all, err := marshal(rest.Interface())
			if before, after, found := bytes.Cut(all, emptyList); found || err != nil {
				before = append(slices.Clip(before), emptyList[:len(emptyList)-1]...)
				return items, [2][]byte{before, append([]byte("]"), after...)}, err
			}
		}
	}
	text[0], err = marshal(value)
	return reflect.Value{}, text, err
}

func writeList(w io.Writer, list reflect.Value, text [2][]byte, marshal func(any) ([]byte, error)) error {
	if !list.IsValid() {
		_, err := w.Write(text[0])
		return err
	}
	b := bufio.NewWriterSize(w, jsonBuffer)
	_, _ = b.Write(text[0]) // an error stays
	for i := range list.Len() {
		element, err := marshal(list.Index(i).Interface())
		if err != nil {
			return err
		}
		if i > 0 {
			_ = b.WriteByte(',') // as above
		}
		if _, err := b.Write(element); err != nil {
			return err
		}
	}
	_, _ = b.Write(text[1]) // as above
	return b.Flush()
}

// Text is a string of an answer that is too large to be copied: what f is called with, in
// parts. Bytes that are not UTF-8 become U+FFFD.
type Text interface {
	Each(f func([]byte) error) error
}

// WriteJSONTexts is WriteJSON for a struct some of whose strings, named by their keys, are
// empty in value and are to be written from texts. A text that is not all UTF-8 is followed by
// what it exactly was, as base64: its key has _base64 at the end.
func WriteJSONTexts(w http.ResponseWriter, status int, value any, texts map[string]Text) error {
	rest, err := json.Marshal(value)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b := bufio.NewWriterSize(w, jsonBuffer)
	for len(rest) > 0 {
		at, key := len(rest), ""
		for name := range texts {
			// Inside of a string its quotes would have backslashes before them.
			if i := bytes.Index(rest, []byte(`"`+name+`":""`)); i >= 0 && i < at {
				at, key = i, name
			}
		}
		if key == "" {
			break
		}
		end := at + len(key) + len(`"":"`)
		_, _ = b.Write(rest[:end]) // an error stays
		t := jsonText{w: b}
		if err := texts[key].Each(t.writePart); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
		t.finish()
		rest = rest[end:]
		if t.replaced {
			if err := writeExact(b, key, texts[key]); err != nil {
				return nil //nolint:nilerr // the client has gone
			}
			rest = rest[1:] // a quote
		}
	}
	_, _ = b.Write(rest) // as above
	_ = b.Flush()        // the client has gone
	return nil
}

// writeExact ends a string of a JSON object, and writes a member with its exact bytes.
func writeExact(b *bufio.Writer, key string, text Text) error {
	_, _ = b.WriteString(`","` + key + `_base64":"`) // an error stays
	e := base64.NewEncoder(base64.StdEncoding, b)
	err := text.Each(func(p []byte) error {
		_, err := e.Write(p)
		return err
	})
	if err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	return b.WriteByte('"')
}

// jsonText writes the inside of a JSON string, as encoding/json has it.
type jsonText struct {
	w       *bufio.Writer
	rest    []byte // the beginning of a character
	invalid bool   // what came last is not UTF-8, and has been replaced
	// replaced says that anything was.
	replaced bool
}

// writePart takes the next part.
func (t *jsonText) writePart(p []byte) error {
	if len(t.rest) > 0 {
		p = append(t.rest, p...)
		t.rest = nil
	}
	start := 0
	for i := 0; i < len(p); {
		escaped, size := "", 1
		if b := p[i]; b < utf8.RuneSelf {
			escaped = escapeASCII(b)
		} else {
			var r rune
			r, size = utf8.DecodeRune(p[i:])
			switch {
			case r == utf8.RuneError && size == 1 && !utf8.FullRune(p[i:]):
				t.rest = bytes.Clone(p[i:])
				_, err := t.w.Write(p[start:i])
				return err
			case r == utf8.RuneError && size == 1:
				_, _ = t.w.Write(p[start:i]) // an error stays
				t.writeReplacement()
				i++
				start = i
				continue
			case r == '\u2028' || r == '\u2029':
				escaped = `\u202` + string("89"[r-'\u2028'])
			}
		}
		t.invalid = false
		if escaped != "" {
			_, _ = t.w.Write(p[start:i])    // as above
			_, _ = t.w.WriteString(escaped) // as above
			start = i + size
		}
		i += size
	}
	_, err := t.w.Write(p[start:])
	return err
}

// writeReplacement writes one character for all bytes in a row that are not UTF-8.
func (t *jsonText) writeReplacement() {
	if !t.invalid {
		_, _ = t.w.WriteString(string(utf8.RuneError)) // an error stays
	}
	t.invalid, t.replaced = true, true
}

// finish writes what is left when no more comes.
func (t *jsonText) finish() {
	if len(t.rest) > 0 {
		t.writeReplacement()
	}
}

// escapeASCII returns what stands for a byte in a JSON string; "" is the byte itself.
func escapeASCII(b byte) string {
	const digits = "0123456789abcdef"
	switch {
	case b == '"' || b == '\\':
		return `\` + string(b)
	case b == '<' || b == '>' || b == '&' || b < ' ':
		if i := strings.IndexByte("\b\f\n\r\t", b); i >= 0 {
			return `\` + string("bfnrt"[i])
		}
		return `\u00` + string(digits[b>>4]) + string(digits[b&0xf])
	}
	return ""
}
