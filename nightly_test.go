package sandpit_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// setElsewhere are the variables that .ci/nightly does not set, with the reason.
var setElsewhere = map[string]string{
	"SANDPIT_TEST_E2B_CLOUD":     "it uses an account at E2B, which costs money",
	"SANDPIT_TEST_DAYTONA_CLOUD": "it needs an account at Daytona, and costs money",
	"SANDPIT_TEST_AGENT_MODEL":   "it needs the key of a vendor of models, and costs money",
	"SANDPIT_TEST_AGENT_PRICE":   "it is for SANDPIT_TEST_AGENT_MODEL",
	"SANDPIT_TEST_DOCKER_HOST":   "it names an engine of the caller; without it, tests start one",
	"SANDPIT_TEST_SCREENSHOT":    "it names a file for a picture to look at; the test is the same without it",
	"SANDPIT_TEST_STOP_OWNER":    "TestStopSurvivesKills sets it for the process that it kills",
	"SANDPIT_TEST_SUSPEND_OWNER": "TestSuspendSurvivesKills sets it for the process that it kills",
}

// soak is a line of .ci/nightly that runs tests.
type soak struct {
	line     string
	run      *regexp.Regexp // the first part of -run; nil runs every test
	packages []string
}

// TestVariablesAreSet checks that .ci/nightly runs every test that needs a variable: each
// SANDPIT_TEST_ variable is set on a line that tests the package that reads it, unless
// another test of that package sets it for a process of its own.
func TestVariablesAreSet(t *testing.T) {
	t.Parallel()
	text := readString(t, ".ci/nightly")
	soaks := soaksOf(t, text)
	used := make(map[string]bool)
	for dir, code := range codeByPackage(t) {
		for _, m := range regexp.MustCompile(`(?:(\w+)\s*=\s*)?"(SANDPIT_TEST_[A-Z0-9_]*[A-Z0-9])[="]`).FindAllStringSubmatch(code, -1) {
			constant, name := m[1], m[2]
			used[name] = true
			if setElsewhere[name] != "" || passedOn(code, constant, name) {
				continue
			}
			found := false
			for _, s := range soaks {
				found = found || strings.Contains(s.line, name+"=") && s.tests(dir)
			}
			if !found {
				t.Errorf("no line of .ci/nightly sets %s and tests ./%s", name, dir)
			}
		}
	}
	if len(used) < 30 {
		t.Errorf("found only %d variables in tests", len(used))
	}
	for name := range setElsewhere {
		if !used[name] {
			t.Errorf("no test uses %s", name)
		}
	}
	for _, name := range regexp.MustCompile(`SANDPIT_TEST_[A-Z0-9_]+`).FindAllString(text, -1) {
		if !used[name] {
			t.Errorf(".ci/nightly sets %s, which no test reads", name)
		}
	}
}

// TestSoaksHaveTests checks that the patterns of .ci/nightly match tests: go test succeeds
// when a pattern matches none.
func TestSoaksHaveTests(t *testing.T) {
	t.Parallel()
	code := codeByPackage(t)
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, s := range soaksOf(t, readString(t, ".ci/nightly")) {
		if len(s.packages) == 0 {
			t.Errorf("no package in %q", s.line)
		}
		for _, name := range s.packages {
			found := false
			for dir, text := range code {
				if !covers(name, dir) {
					continue
				}
				for _, m := range declaration.FindAllStringSubmatch(text, -1) {
					found = found || s.run == nil || s.run.MatchString(m[1])
				}
			}
			if !found {
				t.Errorf("no test of %s is run by %q", name, s.line)
			}
		}
	}
}

// tests tells whether the line tests the package in dir.
func (s soak) tests(dir string) bool {
	for _, name := range s.packages {
		if covers(name, dir) {
			return true
		}
	}
	return false
}

// covers tells whether a package pattern of the go command names the package in dir.
func covers(pattern, dir string) bool {
	below, all := strings.CutSuffix(strings.TrimPrefix(pattern, "./"), "/...")
	return pattern == "./..." || dir == below || all && strings.HasPrefix(dir, below+"/")
}

// soaksOf returns the lines of .ci/nightly that run tests.
func soaksOf(t *testing.T, text string) (list []soak) {
	t.Helper()
	call := regexp.MustCompile(`^\t(?:SANDPIT_TEST_\w+=\S+ )*long \S+ "[^"]*" (.*)$`)
	for line := range strings.SplitSeq(text, "\n") {
		m := call.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		s := soak{line: line}
		for word := range strings.FieldsSeq(m[1]) {
			if pattern, ok := strings.CutPrefix(word, "-run="); ok {
				first, _, _ := strings.Cut(strings.Trim(pattern, "'"), "/")
				s.run = regexp.MustCompile(first)
			}
			if strings.HasPrefix(word, "./") {
				s.packages = append(s.packages, word)
			}
		}
		list = append(list, s)
	}
	if len(list) < 20 {
		t.Fatalf("found only %d lines of .ci/nightly that run tests", len(list))
	}
	return list
}

// passedOn tells whether code sets a variable for another process or a subtest. constant
// is the name of its constant, "" if it has none.
func passedOn(code, constant, name string) bool {
	if strings.Contains(code, `"`+name+`=`) || strings.Contains(code, `Setenv("`+name+`"`) {
		return true
	}
	return constant != "" && regexp.MustCompile(`\b`+constant+`\s*\+\s*"=|Setenv\(`+constant+`\b`).MatchString(code)
}

// codeByPackage returns the Go files that tests are made of, joined for each directory.
func codeByPackage(t *testing.T) map[string]string {
	t.Helper()
	code := make(map[string]string)
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "testdata" || name != "." && strings.HasPrefix(entry.Name(), ".")) {
			return fs.SkipDir
		}
		if name == "nightly_test.go" || !strings.HasSuffix(name, ".go") {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "_test.go") || strings.Contains(string(data), "SANDPIT_TEST_") {
			code[path.Dir(filepath.ToSlash(name))] += string(data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func readString(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
