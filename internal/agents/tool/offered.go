package tool

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// deepestSchema limits the nesting of a schema that is offered.
	deepestSchema = 32
	// maxDescribed bounds a schema within a description, in bytes.
	maxDescribed = 2000
)

// propertyPattern matches the names of properties that every vendor accepts.
var propertyPattern = pattern.New(`^[A-Za-z0-9_.-]{1,64}$`)

// offeredSchema returns the schema of a tool of an MCP server as vendors of models accept it, and the
// description of the tool. A vendor refuses the whole request because of one schema that it does not
// accept, so such a schema becomes a part of the description.
func offeredSchema(raw json.RawMessage, description string) (schema json.RawMessage, described string) {
	var root map[string]any
	if json.Unmarshal(raw, &root) != nil || !isOfferable(root) {
		if text := string(raw); text != "" && text != "null" {
			description = strings.TrimSpace(description + "\nInput: " + textlen.Shorten(text, maxDescribed))
		}
		return json.RawMessage(anyObject), description
	}
	changed := false
	for _, word := range []string{"anyOf", "oneOf", "allOf", "not", "enum"} { // vendors accept them below the root only
		if _, has := root[word]; has {
			delete(root, word)
			changed = true
		}
	}
	if _, has := root["type"]; !has {
		root["type"], changed = "object", true
	}
	if !changed {
		return raw, description
	}
	schema, err := json.Marshal(root)
	if err != nil {
		return json.RawMessage(anyObject), description
	}
	return schema, strings.TrimSpace(description + "\nInput: " + textlen.Shorten(string(raw), maxDescribed))
}

// isOfferable reports whether a schema is one of an object, and valid as far as vendors check it.
func isOfferable(root map[string]any) bool {
	if kind, has := root["type"]; root == nil || has && kind != "object" {
		return false
	}
	if properties, ok := root["properties"].(map[string]any); ok {
		for name := range properties {
			if !propertyPattern().MatchString(name) {
				return false
			}
		}
	}
	return isValidSchema(root, root, 0)
}

// schemaTypes are the types of JSON schemas.
var schemaTypes = []string{"array", "boolean", "integer", "null", "number", "object", "string"}

// isValidSchema reports whether the types and references of a schema are valid.
func isValidSchema(root map[string]any, v any, depth int) bool {
	s, ok := v.(map[string]any)
	if _, boolean := v.(bool); !ok || depth > deepestSchema {
		return boolean && depth <= deepestSchema
	}
	if ref, has := s["$ref"]; has && !isReference(root, ref) {
		return false
	}
	if kind, has := s["type"]; has && !isSchemaType(kind) {
		return false
	}
	for name, of := range s {
		var below []any
		switch name {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			children, ok := of.(map[string]any)
			if !ok {
				return false
			}
			below = slices.Collect(maps.Values(children))
		case "anyOf", "oneOf", "allOf", "prefixItems":
			if below, ok = of.([]any); !ok {
				return false
			}
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames":
			below = []any{of}
			if list, ok := of.([]any); ok && name == "items" { // of earlier drafts
				below = list
			}
		}
		if slices.ContainsFunc(below, func(child any) bool { return !isValidSchema(root, child, depth+1) }) {
			return false
		}
	}
	return true
}

func isSchemaType(v any) bool {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	return !slices.ContainsFunc(list, func(one any) bool {
		name, ok := one.(string)
		return !ok || !slices.Contains(schemaTypes, name)
	})
}

// isReference reports whether a reference leads to a part of the same schema.
func isReference(root map[string]any, v any) bool {
	text, ok := v.(string)
	if text == "#" {
		return true
	}
	way, local := strings.CutPrefix(text, "#/")
	if !ok || !local {
		return false
	}
	var at any = root
	for name := range strings.SplitSeq(way, "/") {
		fields, ok := at.(map[string]any)
		if !ok {
			return false
		}
		if at, ok = fields[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]; !ok {
			return false
		}
	}
	return true
}
