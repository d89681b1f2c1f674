package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// Prefix begins the names of images that are built from Debian's packages. It hides
// docker.io/library/apt, which must be written with its registry.
const Prefix = "apt:"

// Host is the default mirror.
const Host = "deb.debian.org"

// Source fetches packages from mirrors. Its methods may be called concurrently, and any
// number of processes may share the directory.
type Source struct {
	// Dir stores fetched files; it is created if missing. Files that were not used for a month
	// are removed.
	Dir string
	// Mirrors are tried in this order, each a host with an optional port and path. Below it are
	// debian and debian-security. Default: Host.
	Mirrors []string
	// Keys are public keys; one of them must have signed a release. Default: the keys of
	// Debian's archive.
	Keys []byte
	// Now returns the time. Default: time.Now.
	Now func() time.Time
	// Bounds limit the disk space of packages. Default: only each package is limited.
	Bounds Bounds
}

// Bounds limit the disk space of packages.
type Bounds = mirror.Bounds

// Progress reports how many of all bytes are fetched. It is called by one goroutine at a time.
type Progress func(done, total int64)

// Request selects the packages of an image: the essential packages of the suite, and these
// packages with their dependencies.
type Request struct {
	Suite    string
	Packages []string // sorted; NAME or NAME=VERSION
}

var (
	suitePattern   = pattern.New(`^[a-z]{2,20}$`)
	packagePattern = pattern.New(`^[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?$`)
)

const maxPackages = 2000

// ParseRequest parses "apt:SUITE" or "apt:SUITE,PACKAGE,…". Ok is false without the prefix.
//
// Invalid: the suite or a package.
func ParseRequest(text string) (r Request, ok bool, err error) {
	list, ok := strings.CutPrefix(text, Prefix)
	if !ok {
		return r, false, nil
	}
	names := strings.Split(list, ",")
	if !suitePattern().MatchString(names[0]) {
		return r, true, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%.60q is not a release of Debian", names[0]), "use for example apt:bookworm")
	}
	if len(names) > maxPackages {
		return r, true, sandpit.Errorf(sandpit.Invalid, "more than %d packages", maxPackages)
	}
	for _, name := range names[1:] {
		if !packagePattern().MatchString(name) {
			return r, true, sandpit.Errorf(sandpit.Invalid, "%.60q is not the name of a Debian package", name)
		}
	}
	packages := slices.Clone(names[1:])
	slices.Sort(packages)
	return Request{Suite: names[0], Packages: slices.Compact(packages)}, true, nil
}

// String returns the form that ParseRequest parses.
func (r Request) String() string {
	return Prefix + strings.Join(append([]string{r.Suite}, r.Packages...), ",")
}

// Plan is the exact contents of an image.
type Plan struct {
	Request  Request   `json:"request"`
	Arch     string    `json:"arch"`
	Packages []Package `json:"packages"` // by name
}

// Package is one version of a package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	// Path is its path on mirrors.
	Path string `json:"path"`
	// First marks packages that are unpacked before any program runs; their programs install
	// the other packages.
	First bool `json:"first,omitempty"`
	// Control is its paragraph in the archive's list of packages.
	Control string `json:"control"`
}

// Digest returns a digest of everything that determines the image.
func (p Plan) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n", p.Arch, p.Request)
	for _, one := range p.Packages {
		fmt.Fprintf(h, "%s %s %s %v\n", one.Name, one.Version, one.SHA256, one.First)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// architectures maps Go's names of architectures to Debian's.
var architectures = map[string]string{"amd64": "amd64", "arm64": "arm64"}

// Plan chooses the packages for a request. Unless fresh is true, it returns a stored plan that
// was used in the last month, even if the mirror has newer packages.
//
// NotFound: no such release or package. Invalid: a dependency does not exist, or the mirror
// sends invalid data. PermissionDenied: the release is not signed by Debian, is another one,
// is older than one that was seen before, or is no longer valid. Unavailable, Timeout: no
// mirror responds. Unsupported: Debian has no packages for this machine.
func (s Source) Plan(ctx context.Context, r Request, fresh bool, p Progress) (Plan, error) {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return Plan{}, sandpit.Errorf(sandpit.Unsupported, "Debian has no packages for %s", runtime.GOARCH)
	}
	c, err := s.openClient(p, 0)
	if err != nil {
		return Plan{}, err
	}
	defer c.Close()
	name := fileKey("plan", arch, r.String(), strings.Join(s.mirrorHosts(), " ")) + ".plan"
	var plan Plan
	if !fresh {
		if err := c.readRecord(name, &plan); err != nil || plan.Request.String() == r.String() {
			c.Used(name)
			return plan, err
		}
	}
	index, err := c.loadIndex(ctx, r.Suite, arch)
	if err != nil {
		return Plan{}, fmt.Errorf("read the packages of %s: %w", r.Suite, err)
	}
	plan = Plan{Request: r, Arch: arch}
	if plan.Packages, err = index.solvePackages(r.Packages); err != nil {
		return Plan{}, fmt.Errorf("choose packages of %s: %w", r.Suite, err)
	}
	return plan, c.writeRecord(name, plan)
}

func fileKey(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

const (
	maxInRelease = 4 << 20   // bytes
	maxIndex     = 256 << 20 // bytes, packed
	maxDeb       = 4 << 30   // bytes
)

// client sends requests to mirrors for one call of Source.
type client struct {
	*mirror.Client
	dir  string
	keys []byte
	now  func() time.Time
}

func (s Source) openClient(p Progress, total int64) (*client, error) {
	c := &client{dir: s.Dir, keys: s.Keys, now: s.Now}
	if c.keys == nil {
		c.keys = archiveKeys
	}
	if c.now == nil {
		c.now = time.Now
	}
	var bases []string
	for _, host := range s.mirrorHosts() {
		bases = append(bases, "http://"+host) // the data is signed
	}
	var err error
	c.Client, err = mirror.Open(mirror.Options{Dir: s.Dir, Keep: seenSuffix, Bases: bases, Progress: p, Total: total, Bounds: s.Bounds})
	return c, err
}

func (s Source) mirrorHosts() []string {
	if len(s.Mirrors) == 0 {
		return []string{Host}
	}
	return s.Mirrors
}

// readRecord reads a file that writeRecord has written into v. It leaves v unchanged if the
// file is missing, or was truncated by a crash of the machine.
func (c *client) readRecord(name string, v any) error {
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !json.Valid(data):
		return nil
	}
	return json.Unmarshal(data, v)
}

// writeRecord replaces a file of the directory.
func (c *client) writeRecord(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(c.dir, name), 0o600, data, atomicfile.Pattern("*"+mirror.Unfinished),
		atomicfile.NoSync("readRecord ignores a damaged file, and the list is fetched again"))
}
