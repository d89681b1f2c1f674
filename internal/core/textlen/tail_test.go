package textlen_test

import (
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

func TestTail(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"ab"}, "ab"},
		{[]string{"ab", "cd"}, "abcd"},
		{[]string{"ab", "cde"}, "bcde"},
		{[]string{"ab", "cdefgh"}, "efgh"},
	} {
		tail := textlen.NewTail(4)
		for _, text := range tc.writes {
			if n, err := fmt.Fprint(tail, text); n != len(text) || err != nil {
				t.Errorf("write %q: %d, %v", text, n, err)
			}
		}
		if got := tail.String(); got != tc.want {
			t.Errorf("after %q: %q, want %q", tc.writes, got, tc.want)
		}
	}
}
