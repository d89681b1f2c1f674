package tool_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
)

// testInputs gives every tool inputs that do not fit, one thing wrong with each: nothing may happen but a refusal.
func testInputs(t *testing.T, k kit) {
	t.Helper()
	refused := func(name string, in any) {
		t.Helper()
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if r := k.tools.Invoke(t.Context(), k.session, name, data); r.Problem == nil || r.Problem.Code != sandpit.Invalid {
			t.Errorf("%s %.200s: %+v, want it to be invalid", name, data, r)
		}
	}
	tried := 0
	for _, d := range k.tools.Tools() {
		schema := d.Schema()
		good := fields{}
		for _, name := range schema.Required {
			good[name] = fitting(schema.Properties[name])
		}
		for _, bad := range []any{1, "text", []any{}, with(good, "nonsense", 1)} {
			refused(d.Name, bad)
		}
		for _, name := range schema.Required {
			less := maps.Clone(good)
			delete(less, name)
			refused(d.Name, less)
		}
		for name, p := range schema.Properties {
			for _, value := range unfitting(p) {
				refused(d.Name, with(good, name, value))
				tried++
			}
		}
	}
	if tried < 300 {
		t.Errorf("%d values were tried", tried)
	}
	if r := k.want("workspace_info", nil); field(t, r, "shells") != 0.0 {
		t.Errorf("something has run: %s", r.Text)
	}
}

func with(in fields, name string, value any) fields {
	in = maps.Clone(in)
	in[name] = value
	return in
}

// fitting is a value that a field may have.
func fitting(p *jsonschema.Schema) any {
	switch {
	case len(p.Enum) > 0:
		return p.Enum[0]
	case p.Type == "string":
		return "x"
	case p.Type == "array":
		return []string{"x"}
	}
	return 1
}

// unfitting are values that a field may not have.
func unfitting(p *jsonschema.Schema) []any {
	bad := []any{[]any{[]any{}}, nil}
	if p.Type != "object" || p.AdditionalProperties != nil && p.AdditionalProperties.Type != "" { // not any object
		bad = append(bad, fields{"a": fields{}})
	}
	if p.Type != "boolean" {
		bad = append(bad, true)
	}
	if p.Type != "string" {
		bad = append(bad, "text")
	}
	if len(p.Enum) > 0 {
		bad = append(bad, "none of them")
	}
	if p.Minimum != nil {
		bad = append(bad, *p.Minimum-1)
	}
	if p.Maximum != nil {
		bad = append(bad, *p.Maximum+1)
	}
	if p.Type == "integer" {
		bad = append(bad, 1.5)
	}
	return bad
}
