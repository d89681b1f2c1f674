package tool_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestChoice chooses tools by words.
func TestChoice(t *testing.T) {
	t.Parallel()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	count := func(chosen func(tool.Tool) bool) (n int) {
		for _, one := range all.Tools() {
			if chosen(one) {
				n++
			}
		}
		return n
	}
	isGit := func(one tool.Tool) bool { return one.Category == tool.Git }
	usual := count(tool.Tool.IsDefault)
	for name, tc := range map[string]struct {
		words  []string
		tools  int
		has    string
		lacks  string
		refuse bool
	}{
		"the default set":    {nil, usual, "shell_exec", "bash", false},
		"by its word":        {[]string{"default"}, usual, "shell_exec", "bash", false},
		"all":                {[]string{"all"}, len(all.Tools()), "bash", "", false},
		"a category":         {[]string{"git"}, count(isGit), "git_push", "shell_exec", false},
		"the set and others": {[]string{"default", "git", "file_download"}, usual + 1 + count(func(one tool.Tool) bool { return isGit(one) && !one.IsDefault() }), "file_download", "file_upload", false},
		"an alias":           {[]string{"python_execute"}, 1, "python_exec", "pip_install", false},
		"nothing":            {[]string{"default", "gti"}, 0, "", "", true},
		"an empty word":      {[]string{""}, 0, "", "", true},
	} {
		r, err := tool.Choose(nil, tc.words...)
		if tc.refuse {
			if sandpit.CodeOf(err) != sandpit.Invalid || sandpit.HintOf(err) == "" {
				t.Errorf("%s: %v, want Invalid with a hint", name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var names []string
		for _, d := range r.Tools() {
			names = append(names, d.Name)
		}
		if len(names) != tc.tools || !slices.Contains(names, tc.has) || slices.Contains(names, tc.lacks) {
			t.Errorf("%s: %d tools %v, want %d with %s and without %s", name, len(names), names, tc.tools, tc.has, tc.lacks)
		}
	}
}

// TestOfferedOnly looks for names of tools in what clients read about others: each must be
// offered too.
func TestOfferedOnly(t *testing.T) {
	t.Parallel()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range all.Tools() {
		if strings.Contains(d.Name, "_") {
			names = append(names, d.Name)
		}
	}
	known := regexp.MustCompile(`\b(?:` + strings.Join(names, "|") + `)\b`)
	choices := [][]string{nil}
	for _, c := range tool.Categories() {
		choices = append(choices, []string{string(c)})
	}
	for _, words := range choices {
		r, err := tool.Choose(nil, words...)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range r.Tools() {
			data, err := json.Marshal(d.Schema())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range known.FindAllString(d.Description+" "+string(data), -1) {
				if _, err := r.Tool(name); err != nil {
					t.Errorf("%v: %s names %s, which is not offered", words, d.Name, name)
				}
			}
			if d.Description == "" || !strings.HasSuffix(d.Description, ".") {
				t.Errorf("%v: %s is described by %q", words, d.Name, d.Description)
			}
		}
	}
}

// TestNotOffered calls a tool that is not among those offered.
func TestNotOffered(t *testing.T) {
	t.Parallel()
	r, err := tool.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Tool("browser_tabs")
	if sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(sandpit.HintOf(err), "--tools default,browser_tabs") {
		t.Errorf("%v (%s), want NotFound and how to offer it", err, sandpit.HintOf(err))
	}
	if d, err := r.Tool("python_execute"); err != nil || d.Name != "python_exec" {
		t.Errorf("an alias: %s, %v", d.Name, err)
	}
}
