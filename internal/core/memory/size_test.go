package memory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

func TestSizeOf(t *testing.T) {
	t.Parallel()
	type part struct {
		Text    string
		Numbers []int64
		Any     any
		Map     map[string]string
		Next    *part
		At      time.Time
		hidden  string
	}
	const kib = 1 << 10
	text := strings.Repeat("x", kib)
	loop := &part{}
	loop.Next = loop
	for name, tc := range map[string]struct {
		value    any
		min, max int64
	}{
		"nothing":       {nil, 0, 0},
		"number":        {int64(1), 8, 8},
		"text":          {text, kib, kib + 64},
		"bytes":         {[]byte(text), kib, kib + 64},
		"list of texts": {[]string{text, text, text}, 3 * kib, 3*kib + 256},
		"map":           {map[string]string{"a": text, "b": text}, 2 * kib, 2*kib + 256},
		"small entries": {map[string]string{"a": "", "b": "", "c": "", "d": ""}, 4 * 32, 4 * 100},
		"deep":          {part{Text: text, Numbers: make([]int64, 128), Any: []string{text}, Map: map[string]string{text: text}, Next: &part{hidden: text}}, 6 * kib, 6*kib + 1024},
		"endless":       {loop, 16, 8 * kib},
	} {
		if got := memory.SizeOf(tc.value); got < tc.min || got > tc.max {
			t.Errorf("%s: %d bytes, want %d to %d", name, got, tc.min, tc.max)
		}
	}
}
