package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Docker is the [docker] section: where the engine of provider docker is, and what
// its sandboxes are like.
type Docker struct {
	// Host is the engine's address: unix://, tcp://, http:// or https://.
	Host string
	// Context is one of Docker's command line.
	Context string
	// TLSVerify has Host be spoken to with TLS.
	TLSVerify bool
	// CertPath is a directory with ca.pem, cert.pem and key.pem for Host.
	CertPath string
	// RuntimeDir is where the sockets of engines without root are. It comes from
	// XDG_RUNTIME_DIR only.
	RuntimeDir string

	// Image is the default image of a sandbox, because an engine has no "host" image.
	Image sandpit.Image
	// Network is the engine's network of sandboxes that are online.
	Network string
	// Runtime is the engine's name of an OCI runtime.
	Runtime string
	// Userns is the engine's mode of user namespaces.
	Userns string
	// User runs the programs of images that name no user.
	User string
	// Capabilities are what root of a sandbox may do besides the usual.
	Capabilities []string
	// ReadOnlyRoot has the image's files be read only.
	ReadOnlyRoot bool
	// TmpfsSize and ShmSize are bytes of each directory in memory, and of /dev/shm.
	TmpfsSize, ShmSize int64
	// OpenFiles is how many files a process may have open.
	OpenFiles int
	// StopGrace is how long programs may take to end when a sandbox is stopped.
	StopGrace time.Duration
	// CallTimeout is how long one call of the engine may take.
	CallTimeout time.Duration
	// Patience is how long the engine may not answer before calls under way end.
	Patience time.Duration
}

func defaultDocker() Docker {
	return Docker{
		Image: "python:3.12-slim", TmpfsSize: 256 << 20, ShmSize: 64 << 20, OpenFiles: 8192,
		StopGrace: 5 * time.Second, CallTimeout: 2 * time.Minute, Patience: time.Minute,
	}
}

// minTmpfs is the least that something in memory can be.
const minTmpfs = 64 << 10

func dockerSettings() []setting {
	return []setting{
		defineSetting(KeyDockerHost, func(c *Config) *string { return &c.Docker.Host }, setDockerHost,
			"The engine's address: unix://, tcp://, http:// or https://.").
			describedBy("that of `context`, else of the current context in Docker's configuration, else the first existing socket of Docker, rootless Docker and Podman").
			orVariable("DOCKER_HOST", readDockerHost),
		defineSetting(KeyDockerContext, func(c *Config) *string { return &c.Docker.Context }, setName,
			"A context of Docker's command line, used if `host` is not set.").orVariable("DOCKER_CONTEXT", readName),
		defineSetting(KeyDockerTLSVerify, func(c *Config) *bool { return &c.Docker.TLSVerify }, setBool,
			"Whether connections to `host` use TLS and verify its certificate. Setting `cert_path` has the same effect.").
			orVariable("DOCKER_TLS_VERIFY", func(string) (word, bool) { return "true", true }), // as Docker reads it
		defineSetting(KeyDockerCertPath, func(c *Config) *string { return &c.Docker.CertPath }, setPath,
			"The directory of ca.pem, cert.pem and key.pem for `host`.").describedBy("that of Docker's configuration").
			orVariable("DOCKER_CERT_PATH", readPath),
		defineSetting(KeyDockerImage, func(c *Config) *sandpit.Image { return &c.Docker.Image }, setImage,
			"The image of a sandbox if neither its request nor `sandbox.image` names one. An engine has no image `host`."),
		defineSetting(KeyDockerNetwork, func(c *Config) *string { return &c.Docker.Network }, setName,
			"The engine's network for online sandboxes, for example bridge. In it they may also reach this machine and private networks.").
			describedBy("none, and no sandbox is online"),
		defineSetting(KeyDockerRuntime, func(c *Config) *string { return &c.Docker.Runtime }, setName,
			"The engine's name of an OCI runtime, for example runsc.").describedBy("the engine's own"),
		defineSetting(KeyDockerUserns, func(c *Config) *string { return &c.Docker.Userns }, setWord,
			"The mode of user namespaces, for example Podman's auto. The machine's is refused.").describedBy("the engine's own"),
		defineSetting(KeyDockerUser, func(c *Config) *string { return &c.Docker.User }, setWord,
			"The user for programs of images that name none: a name, a uid or uid:gid.").describedBy("root of the sandbox"),
		defineSetting(KeyDockerCapabilities, func(c *Config) *[]string { return &c.Docker.Capabilities }, setCapabilities,
			"Capabilities of root in a sandbox in addition to the default ones (docs/docker.md), for example SYS_PTRACE."),
		defineSetting(KeyDockerReadOnlyRoot, func(c *Config) *bool { return &c.Docker.ReadOnlyRoot }, setBool,
			"Whether the image's files are read-only. If so, the working directory, /tmp, /run and /var/tmp are in memory."),
		defineSetting(KeyDockerTmpfsSize, func(c *Config) *int64 { return &c.Docker.TmpfsSize }, sizeOf(minTmpfs, "64k", `"256m"`),
			"The size of each of these directories in memory. At least 64k."),
		defineSetting(KeyDockerShmSize, func(c *Config) *int64 { return &c.Docker.ShmSize }, sizeOf(minTmpfs, "64k", `"64m"`),
			"The size of /dev/shm. At least 64k."),
		defineSetting(KeyDockerOpenFiles, func(c *Config) *int { return &c.Docker.OpenFiles }, numberOf("files", 64, 1<<20),
			"The number of files that a process may have open. 64 to 1048576."),
		defineSetting(KeyDockerStopGrace, func(c *Config) *time.Duration { return &c.Docker.StopGrace }, timeOf("5"),
			"The time for programs to end when a sandbox is stopped."),
		defineSetting(KeyDockerCallTimeout, func(c *Config) *time.Duration { return &c.Docker.CallTimeout }, timeOf("120"),
			"The time limit for one call of the engine; `image.pull_timeout` applies to pulls."),
		defineSetting(KeyDockerPatience, func(c *Config) *time.Duration { return &c.Docker.Patience }, timeOf("60"),
			"The time for which active commands wait for an engine that does not answer. After that they fail with unavailable, and other requests are refused at once until the engine answers."),
	}
}

func setDockerHost(field *string, v any) error {
	text, ok := textOf(v)
	scheme, rest, found := strings.Cut(text, "://")
	if !ok || !found || scheme == "" || rest == "" || hasControl(text) || strings.Contains(rest, "@") { // which may be a password
		return errors.New("is not the address of an engine; use for example unix:///var/run/docker.sock or tcp://engine.lan:2376")
	}
	*field = text
	return nil
}

// readDockerHost also accepts addresses that only Docker can reach: the provider refuses them
// when it is used.
func readDockerHost(value string) (word, bool) {
	var field string
	return word(value), setDockerHost(&field, word(value)) == nil
}

func readName(value string) (word, bool) { return word(value), namePattern().MatchString(value) }

func readPath(value string) (word, bool) { return word(value), filepath.IsAbs(value) }

var wordPattern = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9_.:,=+-]{0,127}$`)

func setWord(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || !wordPattern().MatchString(text) {
		return fmt.Errorf("%s is not one word", shortValue(v))
	}
	*field = text
	return nil
}

var capabilityPattern = pattern.New(`^[A-Z_]{3,32}$`)

func setCapabilities(field *[]string, v any) error {
	list, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of capabilities; use for example [\"SYS_PTRACE\"]", shortValue(v))
	}
	for i, name := range list {
		list[i] = strings.TrimPrefix(strings.ToUpper(name), "CAP_")
		if !capabilityPattern().MatchString(list[i]) {
			return fmt.Errorf("%s is not a capability; use for example SYS_PTRACE", quoteText(name))
		}
	}
	slices.Sort(list)
	*field = slices.Compact(list)
	return nil
}
