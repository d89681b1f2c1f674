package sandpit_test

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMap compares the table of packages in docs/ARCHITECTURE.md with the tree: every
// package of internal/ has a place in it, and everything in it exists.
func TestMap(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := listedPackages(string(text))
	there := map[string]bool{}
	for _, f := range sources(t) {
		if strings.HasPrefix(f.dir, "internal/") && !f.isTest() {
			there[f.dir] = true
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(there)) {
		parent := dir
		for parent != "." && !listed[parent] {
			parent = path.Dir(parent)
		}
		if parent == "." && !strings.HasPrefix(dir, "internal/testing/") {
			t.Errorf("docs/ARCHITECTURE.md does not list package %s", dir)
		}
	}
	for dir := range listed {
		if !there[dir] {
			t.Errorf("docs/ARCHITECTURE.md lists package %s, which does not exist", dir)
		}
	}
	if len(listed) < 40 {
		t.Errorf("docs/ARCHITECTURE.md lists %d packages", len(listed))
	}
}

// listedPackages returns the packages of internal/ in the table: each of a group's, by the
// names in the first column below the group.
func listedPackages(text string) map[string]bool {
	listed, group := map[string]bool{}, ""
	inGroup, name := regexp.MustCompile("^\\*\\*`(internal/[a-z]+)`\\*\\*"), regexp.MustCompile("`([a-z0-9/]+)`")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		first := ""
		if len(cells) > 2 {
			first = strings.TrimSpace(cells[1])
		}
		switch m := inGroup.FindStringSubmatch(first); {
		case m != nil:
			group = m[1]
		case first == "" || strings.HasPrefix(first, "**"):
			group = ""
		case group != "":
			for _, n := range name.FindAllStringSubmatch(first, -1) {
				listed[group+"/"+n[1]] = true
			}
		}
	}
	return listed
}

// TestPathsInPages fails for a path of the tree in a page that does not exist.
func TestPathsInPages(t *testing.T) {
	t.Parallel()
	inPage := regexp.MustCompile("`((?:internal|provider|conformance|client|cmd|docs|deploy|tools|bench|proto)/[a-zA-Z0-9_./-]+)`")
	inLink := regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)
	pages, checked := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}, 0
	for _, pattern := range []string{"docs/*.md", "docs/design/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inPage.FindAllStringSubmatch(string(text), -1) {
			checked++
			if strings.HasSuffix(m[1], "...") || strings.ToUpper(path.Base(m[1])) == path.Base(m[1]) || strings.Contains(m[1], "NAME") || strings.Contains(m[1], "RESOURCE") || strings.Contains(m[1], "CATEGORY") {
				continue // a pattern
			}
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
		for _, m := range inLink.FindAllStringSubmatch(string(text), -1) {
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
			}
		}
	}
	if checked < 200 {
		t.Errorf("checked %d paths in %d pages", checked, len(pages))
	}
}
