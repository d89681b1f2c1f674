package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Description is one setting as people see it.
type Description struct {
	Key Key
	// Variables are the names of the environment variables, ours first.
	Variables []string
	// About is one sentence that says what it is for.
	About string
	// Default is the default value.
	Default string
	// Value is the value in effect, with secrets hidden; Source says where it comes from,
	// and is "" for a default.
	Value, Source string
}

// Describe returns all settings and their values, in the order of the sections.
func Describe(c Config) []Description {
	usual := Default()
	var list []Description
	for _, s := range allSettings() {
		d := Description{
			Key: s.key, Variables: []string{s.key.Variable()}, About: s.about,
			Default: cmp.Or(s.usual, s.show(&usual)), Value: s.show(&c), Source: c.Sources[s.key],
		}
		for _, a := range s.also {
			d.Variables = append(d.Variables, a.name)
		}
		list = append(list, d)
	}
	return list
}

// renderValue is a value in the form a variable would have.
func renderValue(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case sandpit.Image:
		return string(v)
	case Secret:
		if v == "" {
			return ""
		}
		return hidden
	case *float64:
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case int64:
		return renderSize(v)
	case time.Duration:
		if v%time.Second == 0 {
			return strconv.FormatInt(int64(v/time.Second), 10)
		}
		return v.String()
	case slog.Level:
		return strings.ToLower(v.String())
	case []string:
		return strings.Join(v, ",")
	case []Pool:
		words := make([]string, len(v))
		for i, p := range v {
			words[i] = p.String()
		}
		return strings.Join(words, " ")
	case map[string]Login:
		return renderMap(v, func(Login) string { return hidden })
	case map[string][]string:
		return renderMap(v, func(list []string) string { return strings.Join(list, ",") })
	case map[string]sandpit.Image:
		return renderMap(v, func(i sandpit.Image) string { return string(i) })
	case map[string]int:
		return renderMap(v, strconv.Itoa)
	case map[string]time.Duration:
		return renderMap(v, func(d time.Duration) string { return renderValue(d) })
	default: // numbers and truth values
		return fmt.Sprint(v)
	}
}

func renderMap[T any](m map[string]T, one func(T) string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		words = append(words, name+"="+one(m[name]))
	}
	return strings.Join(words, " ")
}

// renderSize uses the largest unit in which the size is whole.
func renderSize(n int64) string {
	unit := ""
	for _, u := range []string{"k", "m", "g", "t", "p"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(n, 10) + unit
}
