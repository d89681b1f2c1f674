package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// codeLine is a line of a block of code, codeSpan code within a line.
	codeLine = regexp.MustCompile(`(?m)^(?:    )?(?:\$ )?(?:[^\n|#]*\| ?)?((?:CGO_ENABLED=0 go run ./cmd/|bin/)?sandpit [^\n|#]*)`)
	codeSpan = regexp.MustCompile("`(sandpit [^`\n]*)`")
	block    = regexp.MustCompile("(?ms)^```[^\n]*\n(.*?)^```|(?:^    [^\n]*\n)+")
)

// examples are the calls of the program in a page.
func examples(page string) []string {
	var all []string
	for _, code := range block.FindAllString(page, -1) {
		for _, m := range codeLine.FindAllStringSubmatch(strings.ReplaceAll(code, "\\\n", " "), -1) {
			_, call, _ := strings.Cut(m[1], "sandpit ")
			all = append(all, call)
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.TrimPrefix(m[1], "sandpit "))
	}
	return all
}

var ends = regexp.MustCompile(`\s(?:&&?|>|<|;|2>).*`)

// splitExample returns the command of a call, as its page is named, and its arguments.
func splitExample(call string) (command, args []string) {
	words := strings.Fields(strings.NewReplacer("[", "", "]", "", "…", "", "'", "", `"`, "").Replace(ends.ReplaceAllString(call, "")))
	for len(words) > 0 {
		if _, err := os.Stat(filepath.Join("../../../docs/cli", "sandpit_"+strings.Join(append(command, words[0]), "_")+".md")); err != nil {
			break
		}
		command, words = append(command, words[0]), words[1:]
	}
	return command, words
}

// wrongExample says what is wrong with a call, by asking for the help of it: "" is nothing.
// Names that stand for a value, or a flag without one, are all right.
func wrongExample(t *testing.T, call string) string {
	t.Helper()
	command, args := splitExample(call)
	if len(command) == 0 && args[0][0] != '-' {
		command, args = args[:1], args[1:]
	}
	own := "../../../docs/cli/" + strings.Join(append([]string{"sandpit"}, command...), "_") + "_"
	if below, _ := filepath.Glob(own + "*.md"); len(below) > 0 && len(args) > 0 && args[0][0] != '-' {
		for name := range strings.SplitSeq(args[0], "|") {
			if !slices.Contains(below, own+name+".md") {
				return "it has no command " + name
			}
		}
		return ""
	}
	out, stderr, status := run(t, append(append(command, "--help"), args...)...)
	switch {
	case strings.Contains(stderr, "invalid argument"), strings.Contains(stderr, "flag needs an argument"):
		return ""
	case status != 0 || !strings.Contains(out, "  sandpit "+strings.Join(command, " ")):
		return "there is no such thing: " + stderr
	}
	return ""
}

// TestExamples has every command and flag exist that the documents name.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range append(files, "../../../README.md", "../../../SECURITY.md", "../../../CHANGELOG.md", "../../../CONTRIBUTING.md") {
		for _, call := range examples(string(readFile(t, file))) {
			count++
			if wrong := wrongExample(t, call); wrong != "" {
				t.Errorf("%s: sandpit %s: %s", file, call, wrong)
			}
		}
	}
	if count < 150 {
		t.Errorf("only %d calls were found", count)
	}
	for _, call := range []string{"run --no-such-flag true", "create -Q", "no-such-command", "snapshot no-such-command", "--no-such-flag"} {
		if wrongExample(t, call) == "" {
			t.Errorf("sandpit %s is taken for an example", call)
		}
	}
}
