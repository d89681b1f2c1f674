package npm_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
)

// install has a shell script be the npm of this machine, which has nothing else. Default: no npm.
func install(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if script != "" {
		must(t, os.WriteFile(filepath.Join(dir, "npm"), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
}

// TestConfigured asks for the registry where npm tells it, and where it does not.
func TestConfigured(t *testing.T) {
	for name, tc := range map[string]struct {
		program, want string
		code          sandpit.Code
	}{
		"npm":          {program: `[ "$PWD $*" = "/ config get registry" ] && echo http://npm.lan:4873/prefix/ && echo a warning >&2`, want: "http://npm.lan:4873/prefix"},
		"no npm":       {code: sandpit.Unavailable},
		"npm fails":    {program: "echo https://npm.lan/; exit 1", code: sandpit.Unavailable},
		"npm is vague": {program: "echo undefined", code: sandpit.Invalid},
		"no scheme":    {program: "echo npm.lan", code: sandpit.Invalid},
		"no host":      {program: "echo https:///x", code: sandpit.Invalid},
		"other scheme": {program: "echo file:///etc", code: sandpit.Invalid},
		"a password":   {program: "echo https://me:secret@npm.lan/", code: sandpit.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			install(t, tc.program)
			got, err := npm.Configured(t.Context())
			if got != tc.want || sandpit.CodeOf(err) != tc.code {
				t.Errorf("got %q, %v", got, err)
			}
			if err != nil && (sandpit.HintOf(err) == "" || strings.Contains(err.Error(), "secret")) {
				t.Errorf("got %v, hint %q", err, sandpit.HintOf(err))
			}
		})
	}
}

// TestConfiguredGivenUp has an npm that does not answer.
func TestConfiguredGivenUp(t *testing.T) {
	install(t, "while :; do :; done")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := npm.Configured(ctx); sandpit.CodeOf(err) != sandpit.Timeout {
		t.Errorf("got %v", err)
	}
}

// TestDefaultRegistry makes a directory of packages from the registry that npm names.
func TestDefaultRegistry(t *testing.T) {
	r := newRegistry(t)
	r.publish(t, "node_modules/tool", "/tool/-/tool-1.0.0.tgz", nil, file("package/cli.js", 0o600))
	install(t, "echo "+r.URL)
	tree, err := npm.Source{Dir: t.TempDir()}.Tree(t.Context(), r.lock(t), "/opt")
	must(t, err)
	must(t, tree.Close())
}
