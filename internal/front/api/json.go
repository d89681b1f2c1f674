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
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// jsonBuffer is how many bytes of a response are collected before they are sent.
const jsonBuffer = 32 << 10

// ReserveResponse reserves the memory of a value and its text in the account of a request
// until the request ends, because the client decides when it reads the response. Small values
// are not counted.
//
// Exhausted: there is not enough memory.
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

// answerCost is how many bytes of memory each byte of a large response takes: as a value and
// as text.
const answerCost = 2

// WriteJSON responds with a value, whose memory it reserves in the request's account. Lists
// are encoded one element at a time, so that a slow client does not hold much text in memory;
// other text is reserved while it is being sent.
//
// An error means that nothing was sent yet; the caller responds with it. Exhausted: there is
// not enough memory.
func WriteJSON(w http.ResponseWriter, r *http.Request, status int, value any) error {
	if err := ReserveResponse(r.Context(), value); err != nil {
		return err
	}
	list, text, err := splitList(value, json.Marshal)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "encode the response: %w", err)
	}
	if size := int64(len(text[0])); size > jsonBuffer {
		account := memory.AccountOf(r.Context())
		if err := account.Reserve(size); err != nil {
			return err
		}
		defer account.Return(size)
	}
	w.Header().Set("Content-Type", "application/json")
	if !list.IsValid() { // the client has all of it with the last byte, also if the request's body is still read
		w.Header().Set("Content-Length", strconv.Itoa(len(text[0])))
	}
	w.WriteHeader(status)
	_ = writeList(w, list, text, json.Marshal) // the client has disconnected
	return nil
}

// responseTimeout is how long sending a response of Respond may take.
const responseTimeout = 30 * time.Second

// Respond sends a status and a value as JSON, or no body if value is nil. Sending may take 30
// seconds. writeError responds with an error if the value cannot be sent.
func Respond(w http.ResponseWriter, r *http.Request, status int, value any, writeError func(http.ResponseWriter, *http.Request, error)) {
	// The edge clears it before the next request. Connections without deadlines need none.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	if value == nil {
		w.WriteHeader(status)
		return
	}
	if err := WriteJSON(w, r, status, value); err != nil {
		writeError(w, r, err)
	}
}

// EncodeJSON writes a value, lists one element at a time, without escaping characters of HTML.
func EncodeJSON(w io.Writer, value any) error {
	list, text, err := splitList(value, marshalPlain)
	if err != nil {
		return err
	}
	return writeList(w, list, text, marshalPlain)
}

// marshalPlain is json.Marshal without escaping characters of HTML.
func marshalPlain(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// emptyList marks the place of a list in text that was encoded without it.
var emptyList = []byte(`"items":[]`)

// splitList returns the list in a value, if it is a list or a page of one, and the text before
// and after its elements. For another value the list is not valid.
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
	_, _ = b.Write(text[0]) // bufio.Writer keeps the error
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

// Text is a string of a response that is too large to be copied. Each calls f with its parts
// in order. Bytes that are not UTF-8 become U+FFFD.
type Text interface {
	Each(f func([]byte) error) error
}

// WriteJSONTexts is WriteJSON for a struct with strings that are empty in value and are
// written from texts, by their keys. A text that is not UTF-8 is followed by its exact bytes
// as base64, with the key and the suffix _base64.
func WriteJSONTexts(w http.ResponseWriter, status int, value any, texts map[string]Text) error {
	rest, err := json.Marshal(value)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "encode the response: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b := bufio.NewWriterSize(w, jsonBuffer)
	for len(rest) > 0 {
		at, key := len(rest), ""
		for name := range texts {
			// In a string, quotes would be escaped.
			if i := bytes.Index(rest, []byte(`"`+name+`":""`)); i >= 0 && i < at {
				at, key = i, name
			}
		}
		if key == "" {
			break
		}
		end := at + len(key) + len(`"":"`)
		_, _ = b.Write(rest[:end]) // bufio.Writer keeps the error
		t := jsonText{w: b}
		if err := texts[key].Each(t.writePart); err != nil {
			return nil //nolint:nilerr // the client has disconnected
		}
		t.finish()
		rest = rest[end:]
		if t.replaced {
			if err := writeExact(b, key, texts[key]); err != nil {
				return nil //nolint:nilerr // the client has disconnected
			}
			rest = rest[1:] // a quote
		}
	}
	_, _ = b.Write(rest) // as above
	_ = b.Flush()        // the client has disconnected
	return nil
}

// writeExact ends a string of a JSON object, and adds a member with its exact bytes.
func writeExact(b *bufio.Writer, key string, text Text) error {
	_, _ = b.WriteString(`","` + key + `_base64":"`) // bufio.Writer keeps the error
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

// jsonText writes the content of a JSON string, like encoding/json.
type jsonText struct {
	w       *bufio.Writer
	rest    []byte // the beginning of a character
	invalid bool   // the last bytes were not UTF-8 and have been replaced
	// replaced says that any bytes were replaced.
	replaced bool
}

// writePart writes the next part.
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
				_, _ = t.w.Write(p[start:i]) // bufio.Writer keeps the error
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

// writeReplacement writes one character for a run of bytes that are not UTF-8.
func (t *jsonText) writeReplacement() {
	if !t.invalid {
		_, _ = t.w.WriteString(string(utf8.RuneError)) // bufio.Writer keeps the error
	}
	t.invalid, t.replaced = true, true
}

// finish writes what is pending after the last part.
func (t *jsonText) finish() {
	if len(t.rest) > 0 {
		t.writeReplacement()
	}
}

// escapeASCII returns the escaped form of a byte in a JSON string; "" if it needs none.
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
