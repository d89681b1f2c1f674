package config_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestTempDir goes by TMPDIR as other programs do, and by the setting before that.
func TestTempDir(t *testing.T) {
	t.Parallel()
	for want, environ := range map[string][]string{
		"/tmp": {"TMPDIR=relative"}, "/t": {"TMPDIR=/t/"}, "/mine": {"TMPDIR=/t", "SANDPIT_TEMP_DIR=/mine"},
	} {
		c, err := config.Load(config.Options{UID: 1000, Home: "/home/u", Environ: environ})
		if err != nil || c.TempDir != want {
			t.Errorf("%q: %q, %v; want %q", environ, c.TempDir, err, want)
		}
	}
}

// dirs is what a table of directories compares.
type dirs struct{ file, state, cache, runtime string }

func TestDirectories(t *testing.T) {
	t.Parallel()
	xdg := []string{"XDG_CONFIG_HOME=/c", "XDG_STATE_HOME=/s", "XDG_CACHE_HOME=/k", "XDG_RUNTIME_DIR=/r"}
	for name, tc := range map[string]struct {
		uid      int
		home     string
		environ  []string
		unusable bool
		want     dirs
	}{
		"home alone": {
			uid: 1000, home: "/home/u",
			want: dirs{
				"/home/u/.config/sandpit/config.toml", "/home/u/.local/state/sandpit", "/home/u/.cache/sandpit",
				"/home/u/.local/state/sandpit/run",
			},
		},
		"xdg without home": {
			uid: 1000, environ: xdg,
			want: dirs{"/c/sandpit/config.toml", "/s/sandpit", "/k/sandpit", "/r/sandpit"},
		},
		"relative xdg is not set": {
			uid: 1000, home: "/h", environ: []string{"XDG_CONFIG_HOME=c", "XDG_STATE_HOME=s", "XDG_CACHE_HOME=", "XDG_RUNTIME_DIR=r"},
			want: dirs{"/h/.config/sandpit/config.toml", "/h/.local/state/sandpit", "/h/.cache/sandpit", "/h/.local/state/sandpit/run"},
		},
		"runtime of another user": {
			uid: 1000, home: "/h", environ: xdg, unusable: true,
			want: dirs{"/c/sandpit/config.toml", "/s/sandpit", "/k/sandpit", "/s/sandpit/run"},
		},
		"root": {
			home: "/root", environ: xdg,
			want: dirs{"/etc/sandpit/config.toml", "/var/lib/sandpit", "/var/cache/sandpit", "/run/sandpit"},
		},
		"state moved": {
			uid: 1000, home: "/h", environ: append([]string{"SANDPIT_STATE_DIR=/x/y/"}, xdg...),
			want: dirs{"/c/sandpit/config.toml", "/x/y", "/k/sandpit", "/x/y/run"},
		},
		"all moved": {
			environ: []string{"SANDPIT_STATE_DIR=/a", "SANDPIT_CACHE_DIR=/b", "SANDPIT_RUNTIME_DIR=/c"},
			want:    dirs{"/etc/sandpit/config.toml", "/a", "/b", "/c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := user("", tc.environ...)
			o.UID, o.Home = tc.uid, tc.home
			o.Usable = func(string, int) bool { return !tc.unusable }
			c := load(t, o)
			got := dirs{config.DefaultFile(o), c.StateDir, c.CacheDir, c.RuntimeDir}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(dirs{})); diff != "" {
				t.Errorf("directories (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoHome(t *testing.T) {
	t.Parallel()
	o := user("")
	o.Home = ""
	want := []string{
		"SANDPIT_STATE_DIR: no home directory to derive it from; set HOME, XDG_STATE_HOME or this variable to an absolute path",
		"SANDPIT_CACHE_DIR: no home directory to derive it from; set HOME, XDG_CACHE_HOME or this variable to an absolute path",
	}
	if diff := cmp.Diff(want, problems(t, o)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if file := config.DefaultFile(o); file != "" {
		t.Errorf("default file = %q, want none", file)
	}
}

func TestFromProcess(t *testing.T) {
	t.Setenv("SANDPIT_STATE_DIR", "/some/state")
	t.Setenv("SANDPIT_CONFIG", "")
	t.Setenv("HOME", "/some/home")
	o := config.FromProcess()
	o.UID = 1000
	c := load(t, o)
	if c.StateDir != "/some/state" || o.Home != "/some/home" {
		t.Errorf("state = %q, home = %q", c.StateDir, o.Home)
	}
}
