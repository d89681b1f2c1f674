package tool

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOf is the schema of a struct. Its fields' tags say more than Go's types can:
//
//	jsonschema  the description
//	default     the value of a field that is left out, as JSON or plain text
//	enum        the allowed values, separated by commas
//	range       the least and the largest number: "0,600"; either may be missing
func schemaOf[In any]() (*jsonschema.Schema, error) {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		return nil, err
	}
	t := reflect.TypeFor[In]()
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		property := schema.Properties[name]
		if property == nil {
			return nil, fmt.Errorf("field %s has no name", f.Name)
		}
		if err := applyTags(property, f.Tag); err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
	}
	return schema, nil
}

func applyTags(p *jsonschema.Schema, tag reflect.StructTag) error {
	// A pointer allows null, which no caller needs: it leaves the field out.
	if len(p.Types) == 2 && p.Types[0] == "null" {
		p.Type, p.Types = p.Types[1], nil
	}
	if value := tag.Get("default"); value != "" {
		p.Default = json.RawMessage(value)
		if !json.Valid(p.Default) {
			p.Default = json.RawMessage(strconv.Quote(value))
		}
	}
	if values := tag.Get("enum"); values != "" {
		for v := range strings.SplitSeq(values, ",") {
			p.Enum = append(p.Enum, v)
		}
	}
	limits := tag.Get("range")
	if limits == "" {
		return nil
	}
	low, high, _ := strings.Cut(limits, ",")
	var err error
	if p.Minimum, err = parseNumber(low); err == nil {
		p.Maximum, err = parseNumber(high)
	}
	return err
}

func parseNumber(s string) (*float64, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // no limit
	}
	n, err := strconv.ParseFloat(s, 64)
	return &n, err
}
