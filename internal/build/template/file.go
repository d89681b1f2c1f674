package template

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// FileName is the name of a template file in a directory.
const FileName = "sandpit.toml"

// maxFile bounds a template file, in bytes.
const maxFile = 1 << 20

// file is the TOML of a template file.
type file struct {
	Name       string            `toml:"name"`
	From       string            `toml:"from"`
	Packages   []string          `toml:"packages"`
	Env        map[string]string `toml:"env"`
	WorkDir    string            `toml:"workdir"`
	User       string            `toml:"user"`
	Ports      []int             `toml:"ports"`
	Entrypoint []string          `toml:"entrypoint"`
	Command    []string          `toml:"command"`
	Labels     map[string]string `toml:"labels"`
	Build      fileBuild         `toml:"build"`
	Steps      []fileStep        `toml:"step"`
	Start      string            `toml:"start"`
	StartAnew  bool              `toml:"start_anew"`
	Ready      fileReady         `toml:"ready"`
	Resources  fileResources     `toml:"resources"`
	Network    fileNetwork       `toml:"network"`
	Variables  []fileVariable    `toml:"variable"`
}

type fileReady struct {
	Command  string  `toml:"command"`
	Port     int     `toml:"port"`
	URL      string  `toml:"url"`
	Timeout  float64 `toml:"timeout"`
	Interval float64 `toml:"interval"`
}

type fileResources struct {
	Memory int64   `toml:"memory_mb"`
	CPUs   float64 `toml:"cpus"`
	Disk   int64   `toml:"disk_mb"`
	PIDs   int     `toml:"pids"`
}

type fileNetwork struct {
	Online bool     `toml:"online"`
	Allow  []string `toml:"allow"`
	Deny   []string `toml:"deny"`
}

type fileVariable struct {
	Name        string `toml:"name"`
	Required    bool   `toml:"required"`
	Default     string `toml:"default"`
	Description string `toml:"description"`
}

type fileBuild struct {
	Network bool     `toml:"network"`
	Allow   []string `toml:"allow"`
	Deny    []string `toml:"deny"`
	Memory  int64    `toml:"memory_mb"`
	CPUs    float64  `toml:"cpus"`
	Disk    int64    `toml:"disk_mb"`
}

type fileStep struct {
	Run     string            `toml:"run"`
	Secrets []string          `toml:"secrets"`
	Copy    []string          `toml:"copy"`
	NPM     string            `toml:"npm"`
	To      string            `toml:"to"`
	UID     int               `toml:"uid"`
	GID     int               `toml:"gid"`
	Env     map[string]string `toml:"env"`
	WorkDir string            `toml:"workdir"`
	User    string            `toml:"user"`
}

// Parse parses a template file, and reads the npm lock files that it names from dir. If dir is
// nil, it may name none.
//
// Invalid: a syntax error; the error has the position. NotFound: a lock file does not exist.
func Parse(data []byte, dir fs.FS) (Template, error) {
	if len(data) > maxFile {
		return Template{}, sandpit.Errorf(sandpit.Invalid, "a template file has at most %d bytes", maxFile)
	}
	var f file
	meta, err := toml.Decode(string(data), &f)
	if err != nil {
		return Template{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return Template{}, sandpit.Errorf(sandpit.Invalid, "unknown key %q", unknown[0].String())
	}
	t, err := f.toTemplate(dir)
	if err != nil {
		return Template{}, err
	}
	return t, t.Validate()
}

// toTemplate converts top-level settings to steps. Packages come first because they change less
// often; top-level env, workdir and user apply to all other steps.
func (f file) toTemplate(dir fs.FS) (Template, error) {
	t := Template{
		Name: f.Name, From: sandpit.Image(f.From), Entrypoint: f.Entrypoint, Command: f.Command, Labels: f.Labels,
		Build: f.Build.toBuild(), Start: f.Start, StartAnew: f.StartAnew, Ready: sandpit.Ready(f.Ready),
		Resources: sandpit.Resources{Memory: f.Resources.Memory << 20, CPUs: f.Resources.CPUs, Disk: f.Resources.Disk << 20, PIDs: f.Resources.PIDs},
		Network:   sandpit.NetworkPolicy{Online: f.Network.Online || len(f.Network.Allow) > 0, Allow: f.Network.Allow, Deny: f.Network.Deny},
	}
	for _, v := range f.Variables {
		t.Variables = append(t.Variables, sandpit.Variable(v))
	}
	for _, p := range f.Ports {
		t.Ports = append(t.Ports, strconv.Itoa(p))
	}
	switch request, isDebian, err := debian.ParseRequest(strings.Join(append([]string{f.From}, f.Packages...), ",")); {
	case err != nil:
		return t, err
	case isDebian:
		t.From = sandpit.Image(request.String())
	case len(f.Packages) > 0:
		install, err := installPackages(f.Packages)
		if err != nil {
			return t, err
		}
		t.Steps = append(t.Steps, install)
	}
	for _, s := range []Step{{Env: f.Env}, {WorkDir: f.WorkDir}, {User: f.User}} {
		if len(s.Env) > 0 || s.WorkDir != "" || s.User != "" {
			t.Steps = append(t.Steps, s)
		}
	}
	for i, s := range f.Steps {
		step, err := s.toStep(dir)
		if err != nil {
			return t, fmt.Errorf("step %d: %w", i+1, err)
		}
		t.Steps = append(t.Steps, step)
	}
	return t, nil
}

func (b fileBuild) toBuild() Build {
	return Build{
		Network:   sandpit.NetworkPolicy{Online: b.Network || len(b.Allow) > 0, Allow: b.Allow, Deny: b.Deny},
		Resources: sandpit.Resources{Memory: b.Memory << 20, CPUs: b.CPUs, Disk: b.Disk << 20},
	}
}

func (f fileStep) toStep(dir fs.FS) (Step, error) {
	s := Step{Secrets: f.Secrets, Env: f.Env, WorkDir: f.WorkDir, User: f.User}
	if f.Run != "" {
		s.Run = shellArgs(f.Run)
	}
	if len(f.Copy) > 0 || f.To != "" && f.NPM == "" {
		s.Copy = &Copy{From: f.Copy, To: f.To, UID: f.UID, GID: f.GID}
	}
	if f.NPM == "" {
		return s, nil
	}
	lock, err := readLock(dir, f.NPM)
	s.NPM = &NPM{Lock: lock, To: f.To}
	return s, err
}

// readLock reads a lock file of npm.
//
// Invalid: not a lock file, or it cannot be read. NotFound: it does not exist.
func readLock(dir fs.FS, name string) (string, error) {
	if dir == nil {
		return "", sandpit.Errorf(sandpit.Invalid, "no directory is given for the lock file %.100q", name)
	}
	f, err := dir.Open(path.Clean(name))
	if err != nil {
		return "", sandpit.Errorf(sandpit.NotFound, "read the lock file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, npm.MaxLock+1))
	if err != nil {
		return "", sandpit.Errorf(sandpit.Invalid, "read the lock file: %w", err)
	}
	if _, err := npm.ParseLock(data); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(data), nil
}

var packagePattern = pattern.New(`^[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?$`)

// installPackages returns a step that installs Debian packages as root and removes apt's caches.
func installPackages(names []string) (Step, error) {
	for _, name := range names {
		if !packagePattern().MatchString(name) {
			return Step{}, sandpit.Errorf(sandpit.Invalid, "%q is not the name of a Debian package", name)
		}
	}
	// The step is saved completely or not at all, so dpkg need not sync files.
	script := "set -e; export DEBIAN_FRONTEND=noninteractive; apt-get update -q; apt-get install -qy --no-install-recommends " +
		"-o DPkg::Options::=--force-unsafe-io " +
		strings.Join(names, " ") + "; apt-get clean; rm -rf /var/lib/apt/lists/*"
	return Step{Run: shellArgs(script), RunUser: "root"}, nil
}
