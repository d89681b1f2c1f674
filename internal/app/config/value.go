package config

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// textOf returns the text of a TOML string or a word.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case word:
		return string(v), true
	}
	return "", false
}

func setBool(field *bool, v any) error {
	switch v {
	case true, word("true"), word("1"):
		*field = true
		return nil
	case false, word("false"), word("0"):
		*field = false
		return nil
	}
	if _, quoted := v.(string); quoted {
		return fmt.Errorf("%s is text; use true or false without quotes", shortValue(v))
	}
	return fmt.Errorf("%s is neither true nor false", shortValue(v))
}

func setImage(field *sandpit.Image, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok:
		return fmt.Errorf("%s is not the name of an image; use text, for example \"python:3.12-slim\"", shortValue(v))
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("is empty; leave it out for %q", sandpit.HostImage)
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", shortValue(v))
	}
	*field = sandpit.Image(text)
	return nil
}

func setWorkDir(field *string, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok || !path.IsAbs(text):
		return fmt.Errorf("%s is not an absolute path; use for example %s", shortValue(v), sandpit.DefaultWorkDir)
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", shortValue(v))
	case path.Clean(text) != text:
		return fmt.Errorf("%s is not a clean path; write %q", shortValue(v), path.Clean(text))
	}
	*field = text
	return nil
}

// setScreenRules reads rules of the command screen.
func setScreenRules(field *[]string, v any) error {
	list, ok := listOf(v)
	if text, isWord := v.(word); isWord {
		list = strings.Split(string(text), ",")
	}
	if !ok {
		return fmt.Errorf("%s is not a list of rules; use for example [\"git push *force*\"]", shortValue(v))
	}
	rules := make([]string, len(list))
	for i, text := range list {
		words := strings.Fields(text)
		switch {
		case len(words) == 0:
			return errors.New("has an empty rule")
		case hasControl(text):
			return fmt.Errorf("rule %s has a control character in it", quoteText(text))
		case strings.ContainsAny(text, `'"\`):
			return fmt.Errorf("rule %s has quotes or a backslash; write ? for a character inside an argument that you cannot write", quoteText(text))
		case strings.Contains(words[0], "/"):
			return fmt.Errorf("rule %s names a directory; name the program alone, such as %q", quoteText(text), path.Base(words[0]))
		}
		rules[i] = strings.Join(words, " ")
	}
	*field = rules
	return nil
}

// setPath takes a path of the machine, which unlike a path inside a sandbox
// may be written untidily.
func setPath(field *string, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok || !filepath.IsAbs(text):
		return fmt.Errorf("%s is not an absolute path; it must start with /", shortValue(v))
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", shortValue(v))
	}
	*field = filepath.Clean(text)
	return nil
}

// The least of each size. A sandbox does not start with less memory.
const (
	minMemory = 32 << 20
	minDisk   = 1 << 20
)

// sizeOf reads sizes that are not below least.
func sizeOf(least int64, leastText, example string) func(*int64, any) error {
	return func(field *int64, v any) error {
		size, isNumber := v.(int64)
		if !isNumber {
			text, ok := textOf(v)
			if !ok {
				return fmt.Errorf("%s is not a size; use for example %s", shortValue(v), example)
			}
			var err error
			if size, err = ParseSize(text); err != nil {
				return err
			}
		}
		if size < least {
			return fmt.Errorf("%s is too small; use at least %s", shortValue(v), leastText)
		}
		*field = size
		return nil
	}
}

// numberOf reads whole numbers within bounds.
func numberOf(what string, least, most int64) func(*int, any) error {
	return func(field *int, v any) error {
		n, isNumber := v.(int64)
		if w, ok := v.(word); ok {
			var err error
			n, err = strconv.ParseInt(string(w), 10, 64)
			isNumber = err == nil
		}
		if !isNumber || n < least || n > most {
			return fmt.Errorf("%s is not a number of %s; use %d to %d", shortValue(v), what, least, most)
		}
		*field = int(n)
		return nil
	}
}

// oneOf reads one of some words.
func oneOf(words ...string) func(*string, any) error {
	return func(field *string, v any) error {
		text, ok := textOf(v)
		if !ok || !slices.Contains(words, text) {
			return fmt.Errorf("%s is not one of %s", shortValue(v), strings.Join(words, ", "))
		}
		*field = text
		return nil
	}
}

const (
	minCPU = 0.01 // the least a cgroup quota can say
	maxCPU = 1024
)

func setCPU(field *float64, v any) error {
	var cpus float64
	switch n := v.(type) {
	case float64:
		cpus = n
	case int64:
		cpus = float64(n)
	case word:
		var err error
		if cpus, err = strconv.ParseFloat(string(n), 64); err != nil {
			return notCPUs(v)
		}
	default:
		return notCPUs(v)
	}
	if !(cpus >= minCPU && cpus <= maxCPU) { // also true of NaN
		return fmt.Errorf("%s is out of range; use 0.01 to 1024", shortValue(v))
	}
	*field = cpus
	return nil
}

func notCPUs(v any) error {
	return fmt.Errorf("%s is not a number of CPUs; use for example 0.5 or 2", shortValue(v))
}

// timeOf reads times that are some time.
func timeOf(usual string) func(*time.Duration, any) error {
	return func(field *time.Duration, v any) error {
		limit, err := timeoutOf(v)
		switch {
		case err != nil:
			return fmt.Errorf("%s %w", shortValue(v), err)
		case limit <= 0:
			return fmt.Errorf("%s is too short; use at least 1, or omit it for %s", shortValue(v), usual)
		}
		*field = limit
		return nil
	}
}

func timeoutOf(v any) (time.Duration, error) {
	if seconds, ok := v.(int64); ok {
		return secondsToDuration(seconds)
	}
	if text, ok := textOf(v); ok {
		return parseTimeout(text)
	}
	return 0, errNotTime
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// shortValue renders a value for a message: short, on one line.
func shortValue(v any) string {
	switch v := v.(type) {
	case string:
		return quoteText(v)
	case word:
		return quoteText(string(v))
	case bool, int64, float64:
		return fmt.Sprint(v)
	case time.Time:
		return "a date"
	case map[string]any:
		return "a table"
	default:
		return "a list"
	}
}

func quoteText(s string) string {
	const maxLength = 60
	return fmt.Sprintf("%q", textlen.Shorten(s, maxLength))
}
