package cli

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// FuzzVolume reads -v flags. What is accepted exists, and means what it says.
func FuzzVolume(f *testing.F) {
	dir, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		f.Fatal(err)
	}
	home := filepath.Join(dir, "home")
	if err := os.MkdirAll(filepath.Join(home, ".ssh"), 0o700); err != nil {
		f.Fatal(err)
	}
	for _, v := range []string{"DIR/home:/x:rw", "DIR/home/.ssh:/x", "DIR/home/../home/.ssh/.:/x", "/:/x", "/etc:/x:ro", "DIR:/data", "DIR:/data:ro", "DIR:/data:rw", "DIR/link:/x", "DIR/../..:/x", "a:b", ":", "DIR:/a:ro:", "DIR:/a/../../b", "data:/a", "..:/a", "a b:/a", "\x00:/x"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		v = strings.ReplaceAll(v, "DIR", dir)
		mounts, err := parseVolumes([]string{v}, hostpath.Rules{Homes: []string{home}}, io.Discard)
		if err != nil {
			if c := sandpit.CodeOf(err); c == "" {
				t.Errorf("no code: %v", err)
			}
			return
		}
		m := mounts[0]
		if m.Volume != "" {
			if m.CheckSource() != nil || strings.ContainsAny(m.Volume, "/:\x00") || !path.IsAbs(m.Target) {
				t.Errorf("%q shows volume %q at %q", v, m.Volume, m.Target)
			}
			return
		}
		if resolved, err := filepath.EvalSymlinks(m.Source); err != nil || resolved != m.Source || !filepath.IsAbs(m.Source) {
			t.Errorf("%q shows %q, which is %q, %v", v, m.Source, resolved, err)
		}
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target {
			t.Errorf("%q shows it at %q", v, m.Target)
		}
		if m.ReadOnly == strings.HasSuffix(v, ":rw") {
			t.Errorf("%q is read-only: %v", v, m.ReadOnly)
		}
		for _, own := range []string{"/etc", "/proc", "/sys", "/dev", "/boot"} {
			if m.Source == "/" || strings.HasPrefix(home+"/", m.Source+"/") || strings.HasPrefix(m.Source, home+"/.ssh") || m.Source == own || strings.HasPrefix(m.Source, own+"/") {
				t.Errorf("%q shows %q", v, m.Source)
			}
		}
	})
}

// FuzzShebang reads the first lines of files.
func FuzzShebang(f *testing.F) {
	for _, text := range []string{"#!/bin/sh\n", "#!/usr/bin/env python3\n", "#!/usr/bin/env -S node -x\n", "#!\n", "#! \n", "#!/bin/sh", "", "#!/usr/bin/env\n", "#!" + strings.Repeat("x", 300) + "\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, ok := findScript(name)
		if !ok {
			return
		}
		first, _, _ := strings.Cut(text, "\n")
		if !strings.HasPrefix(first, "#!") || len(first) > 256 || len(s.runner) == 0 {
			t.Errorf("%q runs by %q", text, s.runner)
		}
		for _, word := range s.runner {
			if word == "" || !strings.Contains(first, word) {
				t.Errorf("%q runs by %q", text, s.runner)
			}
		}
	})
}

func TestShebang(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"#!/bin/sh -e":                    "/bin/sh -e",
		"#! /usr/bin/env python3":         "python3",
		"#!/usr/bin/env -S node --opt -x": "node --opt -x",
		"#!":                              "",
		"#!  ":                            "",
		"echo":                            "",
	} {
		name := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(name, []byte(line+"\nexit\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, ok := findScript(name)
		if got := strings.Join(s.runner, " "); got != want || ok != (want != "") {
			t.Errorf("%q runs by %q, %v, want %q", line, got, ok, want)
		}
	}
}
