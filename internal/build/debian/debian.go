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
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// Prefix begins the names of images that are made of Debian's packages. No registry has
// such images, but for docker.io/library/apt, which has to be written so.
const Prefix = "apt:"

// Host is the mirror that is asked if no other is named.
const Host = "deb.debian.org"

// Source is where packages come from. Its methods may be called concurrently, and any
// number of processes may share the directory.
type Source struct {
	// Dir is where files are kept; it is made if missing. What was not used for a month
	// is removed.
	Dir string
	// Mirrors are asked in this order, as a host with its port and maybe a path, below
	// which debian and debian-security are. Default: Host.
	Mirrors []string
	// Keys are those of which one must have signed releases. Default: those of Debian's
	// archive.
	Keys []byte
	// Now tells the time. Default: time.Now.
	Now func() time.Time
	// Bounds limit the disk that packages take. Default: only each package is limited.
	Bounds Bounds
}

// Bounds limit the disk that packages take.
type Bounds = mirror.Bounds

// Progress hears how many bytes are fetched, of how many. It is called by one goroutine
// at a time.
type Progress func(done, total int64)

// Request says what an image is to hold: what every system of the suite needs, and these
// packages with all they depend on.
type Request struct {
	Suite    string
	Packages []string // sorted; NAME or NAME=VERSION
}

var (
	suitePattern   = regexp.MustCompile(`^[a-z]{2,20}$`)
	packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?$`)
)

const maxPackages = 2000

// ParseRequest reads "apt:SUITE" or "apt:SUITE,PACKAGE,…". Ok is false if text does not
// begin like that.
//
// Invalid: the rest is none.
func ParseRequest(text string) (r Request, ok bool, err error) {
	list, ok := strings.CutPrefix(text, Prefix)
	if !ok {
		return r, false, nil
	}
	names := strings.Split(list, ",")
	if !suitePattern.MatchString(names[0]) {
		return r, true, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%.60q is not a release of Debian", names[0]), "write for example apt:bookworm")
	}
	if len(names) > maxPackages {
		return r, true, sandpit.Errorf(sandpit.Invalid, "that are more than %d packages", maxPackages)
	}
	for _, name := range names[1:] {
		if !packagePattern.MatchString(name) {
			return r, true, sandpit.Errorf(sandpit.Invalid, "%.60q is not the name of a Debian package", name)
		}
	}
	packages := slices.Clone(names[1:])
	slices.Sort(packages)
	return Request{Suite: names[0], Packages: slices.Compact(packages)}, true, nil
}

// String is what ParseRequest reads.
func (r Request) String() string {
	return Prefix + strings.Join(append([]string{r.Suite}, r.Packages...), ",")
}

// Plan is what an image will hold, to the byte.
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
	// Path is where mirrors have it.
	Path string `json:"path"`
	// First packages are unpacked before any program runs; the others are installed by
	// those.
	First bool `json:"first,omitempty"`
	// Control is what the archive says of it.
	Control string `json:"control"`
}

// Digest stands for everything that decides what the image will be.
func (p Plan) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n", p.Arch, p.Request)
	for _, one := range p.Packages {
		fmt.Fprintf(h, "%s %s %s %v\n", one.Name, one.Version, one.SHA256, one.First)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// architectures of Debian by those of Go.
var architectures = map[string]string{"amd64": "amd64", "arm64": "arm64"}

// Plan says which packages a request means. One that was made before, and used in the last
// month, stays, whatever the mirror has by now, unless fresh is true.
//
// NotFound: there is no such release or package. Invalid: what a package needs is not
// there, or the mirror talks nonsense. PermissionDenied: the release is not Debian's, not
// the one that was asked for, older than one that was seen before, or no longer valid.
// Unavailable, Timeout: the mirror does not answer. Unsupported: Debian has nothing for
// this machine.
func (s Source) Plan(ctx context.Context, r Request, fresh bool, p Progress) (Plan, error) {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return Plan{}, sandpit.Errorf(sandpit.Unsupported, "there are no packages for machines of the kind %s", runtime.GOARCH)
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
		return Plan{}, fmt.Errorf("ask what there is in %s: %w", r.Suite, err)
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

// client speaks to mirrors for one request.
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
		bases = append(bases, "http://"+host) // what matters is signed
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

// readRecord reads what write has written. A file that is missing, or was cut off when the
// machine crashed, changes nothing.
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
