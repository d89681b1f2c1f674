package testsdk

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Versions returns a table of the results of each version of an SDK. The rows are those of the
// first version.
func Versions(sdk string, versions []string, results map[string][]Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |\n|---|%s\n", sdk, strings.Join(versions, " | "), strings.Repeat("---|", len(versions)))
	for i, r := range results[versions[0]] {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, version := range versions {
			list := results[version]
			fmt.Fprintf(&b, " %s |", word(i < len(list) && list[i].Error == ""))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// List returns a table of results.
func List(heading string, results []Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | |\n|---|---|\n", heading)
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s |\n", r.Name, word(r.Error == ""))
	}
	return b.String()
}

func word(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// endMark is the line after tables.
const endMark = "<!-- until here -->\n"

// CheckDocument compares a text with that between the line mark and the next end mark of a page, or
// writes it there.
func CheckDocument(t *testing.T, path, mark, text string, update bool) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), mark)
	have, after, closed := strings.Cut(rest, endMark)
	if !ok || !closed {
		t.Fatalf("%s has no marks", path)
	}
	switch {
	case have == text:
	case update:
		if err := os.WriteFile(path, []byte(before+mark+text+endMark+after), 0o600); err != nil { //nolint:gosec // a path of a test
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has:\n%s\nwant:\n%s\n(-update writes it)", path, have, text)
	}
}
