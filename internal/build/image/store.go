package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Kind says what an image was made from.
type Kind string

// The kinds.
const (
	KindLayers    Kind = "layers"    // an image with its layers, from a registry or a file
	KindTar       Kind = "tar"       // an archive of a root file system
	KindDirectory Kind = "directory" // a directory
	KindHost      Kind = "host"      // this machine's own programs
	KindProgram   Kind = "program"   // one program of sandpit's own
	KindTemplate  Kind = "template"  // another image and what was added to it
)

// Store is a cache of images in a directory. All methods may be called
// concurrently, and any number of processes may share the directory.
//
// Its methods have the administrator's rights: they find every image and set shared names.
// For returns a view with the rights of an owner.
type Store struct {
	o       Options
	machine string // root directory of the machine; only tests change it from "/"

	cache   *cacheDir
	names   *nameTable
	space   *spaceManager
	builder *builder
	puller  *puller
}

// shared is the owner of names that mean the same image to all owners: the administrator of
// the cache has set them. Without a server all names are shared.
const shared = ""

// Offline returns the same cache without access to registries, for callers that cannot wait:
// an image that is not in the cache is NotFound.
func (s *Store) Offline() *Store {
	offline := *s
	offline.o.Pull = pullOffline
	return &offline
}

// limits bound what one image may hold.
type limits struct {
	entries int
	bytes   int64 // of all files together, and of an archive without compression
	names   int64 // bytes of all names and link targets together
	steps   int64 // directories and links on the way to files
}

var defaultLimits = limits{entries: 1_000_000, bytes: 20 << 30, names: 256 << 20, steps: 100_000_000}

// Open returns the cache in dir. It creates dir if it is missing, denies other users
// access to it, and removes what killed processes left in it.
//
// PermissionDenied: dir belongs to another user.
func Open(dir string, o Options) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	s := assembleStore(abs, o.withDefaults())
	if err := makePrivate(abs); err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	if err := s.cache.removeAbandoned(); err != nil {
		return nil, fmt.Errorf("clean the image cache: %w", err)
	}
	return s, nil
}

func assembleStore(dir string, o Options) *Store {
	s := &Store{o: o, machine: "/", cache: &cacheDir{dir: dir}}
	s.names = &nameTable{cache: s.cache}
	s.space = newSpaceManager(s.cache, s.names, o)
	s.builder = &builder{cache: s.cache, space: s.space, sharing: o.Sharing, limits: defaultLimits}
	s.puller = &puller{cache: s.cache, names: s.names, space: s.space, builder: s.builder, o: o, timeouts: defaultTimeouts}
	return s
}

func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "%s belongs to user %d", dir, st.Uid),
			"use another cache directory")
	}
	if st.Mode&0o077 != 0 {
		return os.Chmod(dir, 0o700) //nolint:gosec // a directory must be searchable
	}
	return nil
}
