package sandpit_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestRecipeRefuses names what a recipe may not say.
func TestRecipeRefuses(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*sandpit.Recipe){
		"from is missing": func(r *sandpit.Recipe) { r.From = "" },
		"step 1: want one of run, copy, npm, env, workdir and user, got 0": func(r *sandpit.Recipe) { r.Steps = []sandpit.RecipeStep{{}} },
		"step 1: npm: the lock file is missing, or the directory is not absolute": func(r *sandpit.Recipe) {
			r.Steps = []sandpit.RecipeStep{{NPM: &sandpit.RecipeNPM{Lock: "{}", To: "opt"}}}
		},
		"step 1: npm: a lock file of 1048577 bytes, want at most 1048576": func(r *sandpit.Recipe) {
			r.Steps = []sandpit.RecipeStep{{NPM: &sandpit.RecipeNPM{Lock: strings.Repeat(" ", 1<<20+1), To: "/opt"}}}
		},
		"start_anew: there is no start command":             func(r *sandpit.Recipe) { r.Start, r.Ready, r.StartAnew = "", sandpit.Ready{}, true },
		"ready: there is no start command":                  func(r *sandpit.Recipe) { r.Start = "" },
		"ready: want one of command, port and url, got 2":   func(r *sandpit.Recipe) { r.Ready.URL = "http://localhost/" },
		"ready: port 70000: want 1 to 65535":                func(r *sandpit.Recipe) { r.Ready.Port = 70000 },
		"ready: timeout of 1801 seconds: want at most 1800": func(r *sandpit.Recipe) { r.Ready.Timeout = 1801 },
		"ready: interval of 0.001 seconds: want 0.01 to 60": func(r *sandpit.Recipe) { r.Ready.Interval = 0.001 },
		`ready: url "http://example.org/": want http://localhost:PORT/PATH`: func(r *sandpit.Recipe) {
			r.Ready = sandpit.Ready{URL: "http://example.org/"}
		},
		`"A B" is not the name of an environment variable`: func(r *sandpit.Recipe) { r.Variables = []sandpit.Variable{{Name: "A B"}} },
		"variable A is declared twice":                     func(r *sandpit.Recipe) { r.Variables = []sandpit.Variable{{Name: "A"}, {Name: "A"}} },
		"variable A is required and cannot have a default": func(r *sandpit.Recipe) {
			r.Variables = []sandpit.Variable{{Name: "A", Required: true, Default: "b"}}
		},
	} {
		r := sandpit.Recipe{From: "x", Start: "serve", Ready: sandpit.Ready{Port: 80}}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := r.Validate(); sandpit.CodeOf(err) != sandpit.Invalid || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestRecipeEnvironment fills in what a sandbox is not given.
func TestRecipeEnvironment(t *testing.T) {
	t.Parallel()
	r := sandpit.Recipe{Variables: []sandpit.Variable{{Name: "KEY", Required: true}, {Name: "MODE", Default: "test"}, {Name: "MAYBE"}}}
	if _, err := r.Environment(map[string]string{"MODE": "x"}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("without what is required: %v", err)
	}
	given := map[string]string{"KEY": "", "OTHER": "y"}
	got, err := r.Environment(given)
	if err != nil || !maps.Equal(got, map[string]string{"KEY": "", "OTHER": "y", "MODE": "test"}) || len(given) != 2 {
		t.Errorf("got %v, %v of %v", got, err, given)
	}
}

// TestTemplateNames tells names from IDs.
func TestTemplateNames(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"a": true, "python-3.12": true, "a_b": true, "": false, "A": false, "-a": false, "a:b": false, "../a": false, "a/b": false,
		string(sandpit.NewTemplateID()): false, string(sandpit.NewBuildID()): false,
	} {
		if err := sandpit.CheckTemplateName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := sandpit.NewBuildID().Validate(); err != nil {
		t.Error(err)
	}
	if sandpit.BuildID("bld../../etc/passwd0").Validate() == nil {
		t.Error("a path is a build's ID")
	}
}
