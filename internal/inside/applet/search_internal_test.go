package applet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSearchFile searches a path that is a file, and more than a search tells of.
func TestSearchFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&text, "def f%d\n", i)
	}
	for name, content := range map[string]string{"big.py": text.String(), "small.py": "def one\n", "a.go": "def two\n", "b_test.go": "def three\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	big := filepath.Join(dir, "big.py")
	for name, tc := range map[string]struct {
		request SearchRequest
		matches int
		first   Match
		more    bool
	}{
		"one file, more lines than the limit": {SearchRequest{Path: big, Pattern: "def", Limit: 50}, 50, Match{Path: "big.py", Line: 1, Text: "def f0"}, true},
		"one file by its name":                {SearchRequest{Path: big, Names: []string{"*.py"}}, 1, Match{Path: "big.py", Size: int64(text.Len())}, false},
		"one file of another name":            {SearchRequest{Path: big, Names: []string{"*.go"}}, 0, Match{}, false},
		"no name at all":                      {SearchRequest{Path: big}, 1, Match{Path: "big.py", Size: int64(text.Len())}, false},
		"counts of one file":                  {SearchRequest{Path: big, Pattern: "def", Count: true}, 1, Match{Path: "big.py", Count: 3000}, false},
		"counts of all files":                 {SearchRequest{Path: dir, Pattern: "def", Count: true}, 4, Match{Path: "a.go", Count: 1}, false},
		"counts of some files":                {SearchRequest{Path: dir, Pattern: "def", Count: true, Limit: 2}, 2, Match{Path: "a.go", Count: 1}, true},
		"a name and a kind":                   {SearchRequest{Path: dir, Pattern: "def", Names: []string{"*_test*"}, Kinds: []string{"*.go"}}, 1, Match{Path: "b_test.go", Line: 1, Text: "def three"}, false},
		"a name of another kind":              {SearchRequest{Path: dir, Pattern: "def", Names: []string{"*.go"}, Kinds: []string{"*.py"}}, 0, Match{}, false},
	} {
		got, err := searchFiles(t.Context(), tc.request)
		if err != nil || len(got.Matches) != tc.matches || got.More != tc.more {
			t.Errorf("%s: %d matches, more %v, %v", name, len(got.Matches), got.More, err)
			continue
		}
		if len(got.Matches) > 0 {
			if diff := cmp.Diff(tc.first, got.Matches[0]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}
