package config

import (
	"fmt"
	"path/filepath"
)

// DefaultFile returns the configuration file that Load reads when none is
// named: $XDG_CONFIG_HOME/sandpit/config.toml, for root
// /etc/sandpit/config.toml, or "" if the user has no home directory. It need
// not exist.
func DefaultFile(o Options) string {
	l := loader{opts: o, env: parseEnvironment(o.Environ)}
	return l.defaultFile()
}

func (l *loader) defaultFile() string {
	if l.opts.UID == 0 {
		return "/etc/sandpit/config.toml"
	}
	dir := l.xdgDir("XDG_CONFIG_HOME", ".config")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "config.toml")
}

// xdgDir returns our directory below the one a variable names, or below one in
// the home directory. As the XDG rules have it, a relative path counts as not
// set. It returns "" if there is neither.
func (l *loader) xdgDir(variable, inHome string) string {
	if dir := l.env[variable]; filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandpit")
	}
	if filepath.IsAbs(l.opts.Home) {
		return filepath.Join(l.opts.Home, inHome, "sandpit")
	}
	return ""
}

// fillDirs gives the directories that nothing has set their usual place.
func (l *loader) fillDirs() {
	if filepath.IsAbs(l.opts.Home) {
		l.cfg.Home = filepath.Clean(l.opts.Home)
	}
	stateIsUsual := l.cfg.StateDir == ""
	if l.opts.UID == 0 {
		setIfEmpty(&l.cfg.StateDir, "/var/lib/sandpit")
		setIfEmpty(&l.cfg.CacheDir, "/var/cache/sandpit")
	} else {
		l.fillFromHome(&l.cfg.StateDir, KeyStateDir, "XDG_STATE_HOME", ".local/state")
		l.fillFromHome(&l.cfg.CacheDir, KeyCacheDir, "XDG_CACHE_HOME", ".cache")
	}
	// Whoever moves the state moves the sockets with it: two state directories
	// must not meet in one runtime directory.
	if stateIsUsual {
		setIfEmpty(&l.cfg.RuntimeDir, l.usualRuntime())
	}
	if l.cfg.StateDir != "" {
		setIfEmpty(&l.cfg.RuntimeDir, filepath.Join(l.cfg.StateDir, "run"))
	}
	if dir := l.env["TMPDIR"]; filepath.IsAbs(dir) {
		setIfEmpty(&l.cfg.TempDir, filepath.Clean(dir))
	}
	setIfEmpty(&l.cfg.TempDir, "/tmp")
}

// fillDocker finds Docker's own configuration, and engines without root, where Docker
// does.
func (l *loader) fillDocker() {
	if dir := l.env["XDG_RUNTIME_DIR"]; filepath.IsAbs(dir) {
		l.cfg.Docker.RuntimeDir = dir
	}
	if dir := l.env["DOCKER_CONFIG"]; filepath.IsAbs(dir) {
		setIfEmpty(&l.cfg.Image.DockerConfig, dir)
	}
	if filepath.IsAbs(l.opts.Home) {
		setIfEmpty(&l.cfg.Image.DockerConfig, filepath.Join(l.opts.Home, ".docker"))
	}
}

func setIfEmpty(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

func (l *loader) fillFromHome(field *string, key Key, variable, inHome string) {
	setIfEmpty(field, l.xdgDir(variable, inHome))
	if *field == "" && l.cfg.Sources[key] == "" {
		l.problems.addProblem(Problem{
			Source: key.Variable(),
			Text:   fmt.Sprintf("no home directory to derive it from; set HOME, %s or this variable to an absolute path", variable),
		})
	}
}

// usualRuntime returns the runtime directory the machine offers, or "".
func (l *loader) usualRuntime() string {
	if l.opts.UID == 0 {
		return "/run/sandpit"
	}
	dir := l.env["XDG_RUNTIME_DIR"]
	if !filepath.IsAbs(dir) || !l.opts.Usable(dir, l.opts.UID) {
		return ""
	}
	return filepath.Join(dir, "sandpit")
}
