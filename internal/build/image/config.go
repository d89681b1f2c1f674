package image

import (
	"encoding/json"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Config is an image's configuration for its programs. All values are bounded and valid for
// starting a program, but untrusted.
type Config struct {
	// Env is added to the environment of programs. Nil for nothing.
	Env map[string]string `json:"env,omitempty"`
	// WorkDir is the working directory of programs, absolute and clean. "" if not set.
	WorkDir string `json:"work_dir,omitempty"`
	// User runs programs: a name or a uid, optionally followed by a colon and a group.
	// "" for root.
	User string `json:"user,omitempty"`
	// Entrypoint is the program and its first arguments; Cmd are more arguments,
	// or the whole command if there is no Entrypoint.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// ExposedPorts are the ports that programs listen on, such as 80/tcp, sorted.
	ExposedPorts []string `json:"exposed_ports,omitempty"`
	// Labels are metadata of the builder.
	Labels map[string]string `json:"labels,omitempty"`
}

// Command returns the image's default command: Entrypoint and Cmd. Nil for none.
func (c Config) Command() []string { return slices.Concat(c.Entrypoint, c.Cmd) }

// Bounds of an image's metadata.
const (
	maxDocument    = 4 << 20 // bytes of a manifest, an index or a configuration
	maxConfigItems = 4096    // of each list
	maxConfigBytes = 1 << 20 // of all together
	maxUser        = 256
)

// rawConfig is the JSON of an image's configuration.
type rawConfig struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
	Created      string `json:"created"`
	Config       struct {
		Env          []string
		WorkingDir   string
		User         string
		Entrypoint   []string
		Cmd          []string
		ExposedPorts map[string]struct{}
		Labels       map[string]string
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

func (r rawConfig) toPlatform() platform {
	return platform{OS: r.OS, Architecture: r.Architecture, Variant: r.Variant}
}

// createdAt returns when the image was built, or the zero time.
func (r rawConfig) createdAt() time.Time {
	t, err := time.Parse(time.RFC3339, r.Created)
	if err != nil || t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

// parseConfig parses an image's configuration.
//
// Invalid: not JSON, or values that cannot be passed to a program. Exhausted: it is too large.
func parseConfig(data []byte) (rawConfig, Config, error) {
	var raw rawConfig
	if err := json.Unmarshal(data, &raw); err != nil {
		return raw, Config{}, errConfig("invalid JSON: %s", quoteName(err.Error()))
	}
	c, err := raw.toConfig()
	return raw, c, err
}

func errConfig(format string, args ...any) error {
	return sandpit.Errorf(sandpit.Invalid, "the image's configuration: "+format, args...)
}

func (r rawConfig) toConfig() (Config, error) {
	in := r.Config
	c := Config{User: in.User, Entrypoint: in.Entrypoint, Cmd: in.Cmd, Labels: in.Labels}
	total := len(in.User) + len(in.WorkingDir)
	for _, list := range [][]string{in.Env, in.Entrypoint, in.Cmd} {
		if len(list) > maxConfigItems {
			return c, errConfigTooLarge()
		}
		for _, text := range list {
			if strings.ContainsRune(text, 0) {
				return c, errConfig("%s has a zero byte", quoteName(text))
			}
			total += len(text)
		}
	}
	for name, value := range in.Labels {
		total += len(name) + len(value)
	}
	if total > maxConfigBytes || len(in.Labels) > maxConfigItems || len(in.ExposedPorts) > maxConfigItems {
		return c, errConfigTooLarge()
	}
	if len(in.User) > maxUser || strings.ContainsFunc(in.User, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return c, errConfig("invalid user %s", quoteName(in.User))
	}
	var err error
	if c.WorkDir, err = checkWorkDir(in.WorkingDir); err != nil {
		return c, err
	}
	if c.Env, err = checkEnv(in.Env); err != nil {
		return c, err
	}
	c.ExposedPorts = knownPorts(in.ExposedPorts)
	return c, nil
}

func errConfigTooLarge() error {
	return sandpit.Errorf(sandpit.Exhausted, "the image's configuration is too large to pass to a program")
}

func checkWorkDir(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	clean := path.Join("/", dir)
	if len(clean) > maxPath || strings.ContainsRune(clean, 0) {
		return "", errConfig("invalid working directory %s", quoteName(dir))
	}
	for part := range strings.SplitSeq(clean, "/") {
		if len(part) > maxName {
			return "", errConfig("invalid working directory %s", quoteName(dir))
		}
	}
	return clean, nil
}

func checkEnv(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(list))
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if name == "" {
			return nil, errConfig("invalid environment variable %s", quoteName(e))
		}
		if ok { // a name without a value is ignored
			env[name] = value
		}
	}
	return env, nil
}

func knownPorts(set map[string]struct{}) []string {
	var ports []string
	for text := range set {
		number, protocol, found := strings.Cut(text, "/")
		if !found {
			protocol = "tcp"
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
			continue // a range or invalid; ports are informational
		}
		ports = append(ports, strconv.FormatUint(port, 10)+"/"+protocol)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
