package npm

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

const (
	// MaxLock bounds a lock file, in bytes.
	MaxLock     = 1 << 20
	maxPackages = 5000
)

// Lock is the part of a lock file for this machine: Linux with glibc.
type Lock struct {
	Packages []Package // by path
}

// Package is a package to unpack.
type Package struct {
	// Path is its path below the directory. It ends with node_modules/NAME.
	Path string
	// Name and Version identify it in a registry.
	Name, Version string
	// SHA512 is the digest of its archive, in hexadecimal.
	SHA512 string
	// Bin maps its commands to programs below Path.
	Bin map[string]string
}

// Digest returns a digest of everything that determines the directory.
func (l Lock) Digest() string {
	h := sha256.New()
	for _, p := range l.Packages {
		fmt.Fprintf(h, "%q %s %q\n", p.Path, p.SHA512, p.Bin)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// lockEntry is the JSON of a package in a lock file.
type lockEntry struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Resolved    string            `json:"resolved"`
	Integrity   string            `json:"integrity"`
	Link        bool              `json:"link"`
	Dev         bool              `json:"dev"`
	Optional    bool              `json:"optional"`
	DevOptional bool              `json:"devOptional"`
	InBundle    bool              `json:"inBundle"`
	OS          stringList        `json:"os"`
	CPU         stringList        `json:"cpu"`
	Libc        stringList        `json:"libc"`
	Bin         map[string]string `json:"bin"`
}

// stringList is a string or a list of strings in JSON.
type stringList []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *stringList) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*w = stringList{""}
		return json.Unmarshal(data, &(*w)[0])
	}
	return json.Unmarshal(data, (*[]string)(w))
}

const name = `(@[a-z0-9_][a-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*`

var (
	namePattern    = pattern.New(`^` + name + `$`)
	pathPattern    = pattern.New(`^([A-Za-z0-9_@][A-Za-z0-9._-]*/)*node_modules/` + name + `$`)
	versionPattern = pattern.New(`^[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$`)
	commandPattern = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// ParseLock parses package-lock.json or npm-shrinkwrap.json of npm 7 or newer. It leaves out
// packages for development, for other systems, and those bundled in another package.
//
// Invalid: not a lock file, or a package is not from a registry or has no SHA-512 digest.
// Unsupported: a package that is not optional is for other systems.
func ParseLock(data []byte) (Lock, error) {
	var file struct {
		Version  int                  `json:"lockfileVersion"`
		Packages map[string]lockEntry `json:"packages"`
	}
	if len(data) > MaxLock {
		return Lock{}, sandpit.Errorf(sandpit.Invalid, "a lock file has at most %d bytes", MaxLock)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return Lock{}, sandpit.Errorf(sandpit.Invalid, "not a lock file of npm: %w", err)
	}
	switch {
	case file.Version != 2 && file.Version != 3:
		return Lock{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "lock file of version %d, want 2 or 3", file.Version), "create it with npm 7 or newer")
	case len(file.Packages) > maxPackages:
		return Lock{}, sandpit.Errorf(sandpit.Invalid, "the lock file has more than %d packages", maxPackages)
	}
	var l Lock
	for _, at := range slices.Sorted(maps.Keys(file.Packages)) {
		e := file.Packages[at]
		if at == "" || e.Dev || e.InBundle {
			continue // "" is the project itself
		}
		p, err := e.toPackage(at)
		if err != nil {
			return Lock{}, fmt.Errorf("%.200q: %w", at, err)
		}
		switch optional := e.Optional || e.DevOptional; {
		case e.fitsMachine():
			l.Packages = append(l.Packages, p)
		case !optional:
			return Lock{}, sandpit.Errorf(sandpit.Unsupported, "%.200q is not for this machine", at)
		}
	}
	return l, nil
}

// toPackage returns the package at a path in a lock file.
func (e lockEntry) toPackage(at string) (Package, error) {
	p := Package{Path: at, Name: e.Name, Version: e.Version, Bin: map[string]string{}}
	if p.Name == "" && pathPattern().MatchString(at) {
		p.Name = p.installName()
	}
	file := e.Resolved == "" || strings.HasPrefix(e.Resolved, "https://") || strings.HasPrefix(e.Resolved, "http://")
	if e.Link || !file || !pathPattern().MatchString(at) || !namePattern().MatchString(p.Name) || !versionPattern().MatchString(p.Version) {
		return p, sandpit.Errorf(sandpit.Invalid, "the package is not from a registry")
	}
	for command, program := range e.Bin {
		program = path.Clean(program)
		if !commandPattern().MatchString(command) || !isBelow(program) {
			return p, sandpit.Errorf(sandpit.Invalid, "invalid command %.100q with the program %.200q", command, program)
		}
		p.Bin[command] = program
	}
	var err error
	p.SHA512, err = sha512Of(e.Integrity)
	return p, err
}

// sha512Of returns the SHA-512 digest in an integrity value of npm: TYPE-BASE64, several
// separated by spaces.
func sha512Of(integrity string) (string, error) {
	for one := range strings.FieldsSeq(integrity) {
		text, ok := strings.CutPrefix(one, "sha512-")
		if !ok {
			continue
		}
		sum, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(sum) != 64 {
			break
		}
		return hex.EncodeToString(sum), nil
	}
	return "", sandpit.Errorf(sandpit.Invalid, "the package has no SHA-512 digest")
}

// processors maps Go's names of architectures to npm's.
var processors = map[string]string{"amd64": "x64", "arm64": "arm64"}

// fitsMachine reports whether a package is for this machine.
func (e lockEntry) fitsMachine() bool {
	return isAllowed(e.OS, "linux") && isAllowed(e.CPU, processors[runtime.GOARCH]) && isAllowed(e.Libc, "glibc")
}

// isAllowed reports whether a list allows one: it contains its name, or only excludes others.
func isAllowed(list stringList, one string) bool {
	only := false
	for _, item := range list {
		switch {
		case item == one || item == "any":
			return true
		case item == "!"+one:
			return false
		case !strings.HasPrefix(item, "!"):
			only = true
		}
	}
	return !only
}

// installName returns the name under which programs import the package.
func (p Package) installName() string {
	const modules = "node_modules/"
	return p.Path[strings.LastIndex(p.Path, modules)+len(modules):]
}

// registryPath returns the package's path in a registry.
func (p Package) registryPath() string {
	return p.Name + "/-/" + path.Base(p.Name) + "-" + p.Version + ".tgz"
}
