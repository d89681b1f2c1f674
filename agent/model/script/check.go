package script

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// refusal is an error response.
type refusal struct {
	status               int
	kind, code, param    string
	message, retryHeader string
}

// dialect is how a vendor writes paths and complaints.
type dialect interface {
	child(path, name string) string
	item(path string, i int) string
	unknown(path string) *refusal
	missing(path string) *refusal
	wrongType(path, want string, got json.RawMessage) *refusal
	outOfRange(path string, bound float64, above bool) *refusal
	invalid(path, message string) *refusal
}

// field is a value in a request, and where it is. raw is nil if the request lacks it.
type field struct {
	raw  json.RawMessage
	path string
}

func (f field) isSet() bool { return len(f.raw) > 0 && string(f.raw) != "null" }

// kind returns the first character of the value.
func (f field) kind() byte {
	if !f.isSet() {
		return 0
	}
	return bytes.TrimLeft(f.raw, " \t\r\n")[0]
}

// checker reads a request. After the first complaint its functions return zero values.
type checker struct {
	d   dialect
	err *refusal
	// version is the version of the API that the request names. Only Anthropic has one.
	version string
}

func (c *checker) fail(r *refusal) {
	if c.err == nil {
		c.err = r
	}
}

func (c *checker) invalid(f field, message string) { c.fail(c.d.invalid(f.path, message)) }

// object returns the fields of an object, all of which must be known.
func (c *checker) object(f field, known ...string) map[string]field {
	var raw map[string]json.RawMessage
	if c.err != nil {
		return nil
	}
	if f.kind() != '{' || json.Unmarshal(f.raw, &raw) != nil {
		c.fail(c.d.wrongType(f.path, "object", f.raw))
		return nil
	}
	fields := map[string]field{}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		path := c.d.child(f.path, name)
		if !slices.Contains(known, name) {
			c.fail(c.d.unknown(path))
		}
		fields[name] = field{raw[name], path}
	}
	for _, name := range known {
		if _, ok := fields[name]; !ok {
			fields[name] = field{nil, c.d.child(f.path, name)}
		}
	}
	return fields
}

// need complains if a field is not set.
func (c *checker) need(f field) field {
	if !f.isSet() {
		c.fail(c.d.missing(f.path))
	}
	return f
}

// list returns the values of an array. A field that is not set has none.
func (c *checker) list(f field) []field {
	var raw []json.RawMessage
	if c.err != nil || !f.isSet() {
		return nil
	}
	if json.Unmarshal(f.raw, &raw) != nil {
		c.fail(c.d.wrongType(f.path, "array", f.raw))
		return nil
	}
	list := make([]field, len(raw))
	for i := range raw {
		list[i] = field{raw[i], c.d.item(f.path, i)}
	}
	return list
}

func (c *checker) text(f field) string {
	var text string
	if f.isSet() && json.Unmarshal(f.raw, &text) != nil {
		c.fail(c.d.wrongType(f.path, "string", f.raw))
	}
	return text
}

func (c *checker) boolean(f field) (b bool) {
	if f.isSet() && json.Unmarshal(f.raw, &b) != nil {
		c.fail(c.d.wrongType(f.path, "boolean", f.raw))
	}
	return b
}

// integer reads a number that is at least 1. 0: it is not set.
func (c *checker) integer(f field) (n int) {
	if !f.isSet() {
		return 0
	}
	if json.Unmarshal(f.raw, &n) != nil {
		c.fail(c.d.wrongType(f.path, "integer", f.raw))
	} else if n < 1 {
		c.fail(c.d.outOfRange(f.path, 1, false))
	}
	return n
}

// temperature reads a number from 0 to most. Nil: it is not set.
func (c *checker) temperature(f field, most float64) *float64 {
	var n float64
	switch {
	case !f.isSet():
		return nil
	case json.Unmarshal(f.raw, &n) != nil:
		c.fail(c.d.wrongType(f.path, "number", f.raw))
	case n < 0:
		c.fail(c.d.outOfRange(f.path, 0, false))
	case n > most:
		c.fail(c.d.outOfRange(f.path, most, true))
	}
	return &n
}

// imageTypes are the images that both vendors accept.
var imageTypes = []string{"image/jpeg", "image/png", "image/gif", "image/webp"}

var errNoImage = errors.New("the data is not an image")

// decodeImage reads an image and the type that its first bytes say.
func decodeImage(encoded string) (model.Image, error) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return model.Image{}, err
	}
	kind := http.DetectContentType(data)
	if !slices.Contains(imageTypes, kind) {
		return model.Image{}, errNoImage
	}
	return model.Image{MediaType: kind, Data: data}, nil
}

// isToolName reports whether a name matches [a-zA-Z0-9_-]{1,most}.
func isToolName(name string, most int) bool {
	return name != "" && len(name) <= most && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// typeOf returns the type of a JSON schema, "" if it has none.
func typeOf(schema json.RawMessage) string {
	var s struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return ""
	}
	return s.Type
}

// missingCalls are the calls that have no result yet, in their order.
type missingCalls []string

// answer removes a call. False: it is not there.
func (m *missingCalls) answer(id string) bool {
	i := slices.Index(*m, id)
	if i < 0 {
		return false
	}
	*m = slices.Delete(slices.Clone(*m), i, i+1)
	return true
}
