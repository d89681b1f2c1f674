package tool

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestOfferedSchema has schemas that vendors refuse, and with them the whole request.
func TestOfferedSchema(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"type":"object","properties":{"a":{"type":["string","null"]}}}`:                                               "",
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"type":{"type":"string"}}}`: "",
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/a~1b"}},"$defs":{"a/b":{"items":{"$ref":"#"}}}}`:           "",
		`{"type":"object","additionalProperties":false}`:                                                                "",
		`{"properties":{"a":true}}`: `{"properties":{"a":true},"type":"object"}`,
		`{"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]}]}`:       `{"properties":{"a":{}},"type":"object"}`,
		`{"type":"object","properties":{"a":{"$ref":"https://example.com/s.json"}}}`: anyObject,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/none"}}}`:               anyObject,
		`{"type":"object","properties":{"a b":{}}}`:                                  anyObject,
		`{"type":"object","properties":{"a":{"type":"text"}}}`:                       anyObject,
		`{"type":"object","properties":["a"]}`:                                       anyObject,
		`{"type":"string"}`:                                                          anyObject,
		`[]`:                                                                         anyObject,
		`null`:                                                                       anyObject,
		``:                                                                           anyObject,
		`{"type":"object","properties":{"a":` + strings.Repeat(`{"items":`, 40) + `{}` + strings.Repeat(`}`, 40) + `}}`: anyObject,
		`{"type":"object","properties":{"a":{"description":"` + strings.Repeat("x", 3*maxDescribed) + `","type":1}}}`:   anyObject,
	} {
		got, description := offeredSchema(json.RawMessage(raw), "adds")
		if want == "" {
			if string(got) != raw || description != "adds" {
				t.Errorf("%s became %s (%s)", raw, got, description)
			}
			continue
		}
		if string(got) != want {
			t.Errorf("%.200s became %s, want %s", raw, got, want)
		}
		if described := strings.HasPrefix(description, "adds\nInput: "); described != (len(raw) > 4) && raw != "[]" || len(description) > maxDescribed+100 {
			t.Errorf("%.200s: the description is %q", raw, description)
		}
	}
}
