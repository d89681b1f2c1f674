// Package config reads the configuration: defaults, then a TOML file, then
// environment variables, then flags, each layer over the one before, into one
// Config. Nothing is global: two configurations can live in one process.
//
// Loading is strict. An unknown key, an invalid value and an unknown variable are
// problems, and all of them are reported at once, each with its position (see Problems). Sections of other programs in the
// same file are left alone, so that an OpenManus configuration can be used as
// it is; their names are kept in Config.Ignored and their contents are never
// shown.
//
// The package is the only one that reads the environment of the process, and
// only in FromProcess.
package config

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Config is the whole configuration. It is a plain value once loaded; nothing
// in this package changes it afterwards. Default and, where the machine or the user decides,
// Load have the defaults, which docs/configuration.md lists, and the settings have the ranges.
type Config struct {
	// Sandbox is the [sandbox] section.
	Sandbox Sandbox
	// Network is the [network] section.
	Network Network
	// Image is the [image] section.
	Image Image
	// Docker is the [docker] section.
	Docker Docker
	// Providers is the [providers] section.
	Providers Providers
	// Daytona is the [daytona] section.
	Daytona Daytona
	// Server, SSH, Manager, Queue, Log and Telemetry are the sections of those names.
	Server    Server
	SSH       SSH
	Manager   Manager
	Queue     Queue
	Log       Log
	Telemetry Telemetry
	// Usage is the [usage] section.
	Usage Usage
	// Archive is the [archive] section.
	Archive Archive
	// Audit is the [audit] section.
	Audit Audit
	// Preview is the [preview] section.
	Preview Preview
	// E2B is the [e2b] section.
	E2B E2B
	// E2BCloud is where provider e2b finds its cloud.
	E2BCloud E2BCloud
	// LLM is the [llm] section, and NamedLLMs are those below it, such as [llm.vision], by name.
	LLM       LLM
	NamedLLMs map[string]LLM
	// Pools are the [[pool]] entries.
	Pools []Pool

	// Provider is the provider of requests that name none: one of the table in package daemon.
	Provider string
	// ProviderList are Provider and those that such requests go on to, in this order. Default:
	// Provider alone.
	ProviderList []string
	// URL is where clients find a server. "" means the socket of this user's own.
	URL string
	// APIKey is what clients show it.
	APIKey Secret
	// CA is a file of certificates in PEM form, one of which must have signed the server's. ""
	// means those that the machine trusts.
	CA string

	// Engine is the absolute path of a static sandpit binary to be used as the engine. "" means
	// this program itself.
	Engine string
	// StateDir keeps what must survive a restart: leases, snapshots.
	StateDir string
	// CacheDir keeps what can be made again: images.
	CacheDir string
	// RuntimeDir keeps sockets and locks.
	RuntimeDir string
	// TempDir is where temporary directories of sandboxes are made.
	TempDir string

	// Home is the home directory of the user, or "".
	Home string

	// Systemd is what the service manager expects.
	Systemd Systemd

	// File is the configuration file that was read, or "" if there was none.
	File string
	// Ignored names the sections of File that belong to other programs, in
	// file order.
	Ignored []string
	// Notices are oddities that do not prevent a start: unknown variables, and values of
	// other programs' variables that are invalid here.
	Notices []string
	// Sources says where each value that is not a default came from, in words
	// fit for a message: "config.toml:7", "SANDPIT_SANDBOX_IMAGE", "--memory".
	Sources map[Key]string
}

// Fallbacks returns the providers that requests go on to if Provider cannot create a sandbox.
func (c Config) Fallbacks() []string {
	if len(c.ProviderList) > 0 && c.ProviderList[0] == c.Provider {
		return c.ProviderList[1:]
	}
	return nil
}

// CommandTimeout is how long a command may take whose request says nothing, on a path
// where that is usually usual: sandbox.timeout if that was set, else usual.
func (c Config) CommandTimeout(usual time.Duration) time.Duration {
	if c.Explicit(KeyTimeout) {
		return c.Sandbox.Timeout
	}
	return usual
}

// Explicit reports whether key was set by the file, the environment or a flag.
// A default limit that the machine cannot enforce is skipped with a notice; an
// explicit one is refused.
func (c Config) Explicit(key Key) bool { return c.Sources[key] != "" }

// OwnPaths returns the paths that are not mounted in sandboxes without an explicit override:
// directories with sandpit's own files, and the socket of Docker's engine.
func (c Config) OwnPaths() []string {
	paths := []string{c.StateDir, c.CacheDir, c.RuntimeDir}
	if socket, ok := strings.CutPrefix(c.Docker.Host, "unix://"); ok {
		paths = append(paths, socket)
	}
	return slices.DeleteFunc(paths, func(p string) bool { return !filepath.IsAbs(p) })
}

// ArchiveDir returns the directory of archived sandboxes, unless they are in S3.
func (c Config) ArchiveDir() string {
	return cmp.Or(c.Archive.Dir, filepath.Join(c.StateDir, "archive"))
}

// Images returns the images that the configuration names.
func (c Config) Images() []sandpit.Image {
	refs := []sandpit.Image{c.Sandbox.Image, c.Docker.Image}
	refs = append(refs, slices.Collect(maps.Values(c.E2B.Templates))...)
	for _, name := range c.Image.PrePull {
		refs = append(refs, sandpit.Image(name))
	}
	for _, pool := range c.Pools {
		refs = append(refs, pool.Image)
	}
	return refs
}

// Limits returns the default limits of a sandbox.
func (s Sandbox) Limits() sandpit.Resources {
	return sandpit.Resources{Memory: s.MemoryLimit, CPUs: s.CPULimit, Disk: s.DiskLimit, PIDs: s.PIDsLimit}
}

// Sandbox is the [sandbox] section: what a sandbox is when the request for it
// says nothing else. The names and all defaults but the image are those of
// OpenManus.
type Sandbox struct {
	// UseSandbox is accepted and has no effect: tools of agents always run in a sandbox.
	UseSandbox bool
	// Image is what a sandbox starts from. Any non-empty text is accepted here, for example
	// "python:3.12-slim" (the default of OpenManus); which forms work is the provider's business.
	Image sandpit.Image
	// WorkDir is where commands start, absolute and clean.
	WorkDir string
	// MemoryLimit is in bytes, swap included.
	MemoryLimit int64
	// CPULimit is a number of CPUs, 0.5 being half of one.
	CPULimit float64
	// DiskLimit is how many bytes a sandbox may write and keep.
	DiskLimit int64
	// PIDsLimit is how many processes and threads there may be.
	PIDsLimit int
	// Timeout is how long one command may take. More than zero; the file gives it as a number of
	// seconds or as text like "5m".
	Timeout time.Duration
	// NetworkEnabled lets a sandbox reach the network.
	NetworkEnabled bool
	// CommandScreen says what happens to a command that looks as if it destroyed a system:
	// ScreenOff, ScreenWarn, ScreenAsk or ScreenDeny. It is a guard rail; the sandbox is what
	// protects.
	CommandScreen string
	// ScreenDenied, ScreenAsked, ScreenWarned and ScreenAllowed are the user's rules of the
	// screen, which come before the built-in ones, in this order. Each is a glob for a
	// program's name, and globs of which each must match an argument. Default: none.
	ScreenDenied, ScreenAsked, ScreenWarned, ScreenAllowed []string
	// ConfineFiles has calls that read or change files refused if they leave the
	// sandbox's working directory and its mounts. Commands are not confined.
	// Default: false.
	ConfineFiles bool
}

// The values of Sandbox.CommandScreen.
const (
	// ScreenOff looks at nothing.
	ScreenOff = "off"
	// ScreenWarn runs the command and says what is wrong with it.
	ScreenWarn = "warn"
	// ScreenAsk asks the person at the terminal; without one it is ScreenDeny.
	ScreenAsk = "ask"
	// ScreenDeny refuses what is dangerous or hidden, and warns of the rest.
	ScreenDeny = "deny"
)

// Default returns the configuration of a machine where nothing is configured.
// The directories are empty: they depend on the user, and Load fills them in.
func Default() Config {
	c := Config{
		Sandbox: Sandbox{
			Image:       sandpit.HostImage,
			WorkDir:     sandpit.DefaultWorkDir,
			MemoryLimit: 512 << 20,
			CPULimit:    1,
			DiskLimit:   10 << 30,
			PIDsLimit:   1024,
			Timeout:     300 * time.Second,

			CommandScreen: ScreenOff,
		},
		Image: Image{
			Pull:        "missing",
			CacheSize:   20 << 30,
			MaxPulls:    4,
			PullTimeout: 30 * time.Minute,
		},
		Docker:  defaultDocker(),
		Daytona: defaultDaytona(),

		Providers: defaultProviders(),

		Preview:  defaultPreview(),
		E2B:      defaultE2B(),
		E2BCloud: defaultE2BCloud(),
		LLM:      LLM{MaxTokens: 4096},
		Sources:  map[Key]string{},
	}
	defaultServer(&c)
	return c
}
