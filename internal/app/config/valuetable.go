package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// valueTable describes a setting that is a table of values by name.
type valueTable[T any] struct {
	// values and key say in errors what the table contains, such as "times", and what its keys are,
	// such as "name of a provider".
	values, key string
	example     string
	// cut splits a word such as e2b=60 of a variable. Default: at the first "=".
	cut   func(item string) (name, value string)
	isKey func(name string) bool
	set   func(field *T, v any) error
}

// read reads a TOML table, or words with spaces between them. The first name in order with an error
// decides the error.
func (t valueTable[T]) read(field *map[string]T, v any) error {
	items, ok := t.split(v)
	if !ok {
		return fmt.Errorf("%s is not a table of %s; use for example %s", shortValue(v), t.values, t.example)
	}
	read := make(map[string]T, len(items))
	for _, name := range slices.Sorted(maps.Keys(items)) {
		if !t.isKey(name) {
			return fmt.Errorf("%s: not a %s; use for example %s", quoteText(name), t.key, t.example)
		}
		var value T
		if err := t.set(&value, items[name]); err != nil {
			return fmt.Errorf("%s: %w", quoteText(name), err)
		}
		read[name] = value
	}
	*field = read
	return nil
}

// split returns the unread values by name. Not ok: v has none.
func (t valueTable[T]) split(v any) (items map[string]any, ok bool) {
	switch v := v.(type) {
	case map[string]any:
		return v, true
	case word:
		cut := t.cut
		if cut == nil {
			cut = func(item string) (name, value string) { name, value, _ = strings.Cut(item, "="); return name, value }
		}
		items = make(map[string]any)
		for item := range strings.FieldsSeq(string(v)) {
			name, value := cut(item)
			items[name] = word(value)
		}
		return items, true
	}
	return nil, false
}
