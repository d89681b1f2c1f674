package config

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sandpit-dev/sandpit"
)

// Key names one setting as in the file: "section.key", or "key" for those
// above the first section.
type Key string

// The keys. A variable is SANDPIT_ and the key in upper case with an underscore
// for the dot: SANDPIT_SANDBOX_IMAGE.
const (
	KeyEngine         Key = "engine"
	KeyStateDir       Key = "state_dir"
	KeyCacheDir       Key = "cache_dir"
	KeyRuntimeDir     Key = "runtime_dir"
	KeyUseSandbox     Key = "sandbox.use_sandbox"
	KeyImage          Key = "sandbox.image"
	KeyWorkDir        Key = "sandbox.work_dir"
	KeyMemoryLimit    Key = "sandbox.memory_limit"
	KeyCPULimit       Key = "sandbox.cpu_limit"
	KeyDiskLimit      Key = "sandbox.disk_limit"
	KeyPIDsLimit      Key = "sandbox.pids_limit"
	KeyTimeout        Key = "sandbox.timeout"
	KeyNetworkEnabled Key = "sandbox.network_enabled"
	KeyCommandScreen  Key = "sandbox.command_screen"
	KeyImagePull      Key = "image.pull"
	KeyImageMirrors   Key = "image.mirrors"
	KeyImageInsecure  Key = "image.insecure"
	KeyImageAuth      Key = "image.auth"
	KeyDockerConfig   Key = "image.docker_config"
	KeyCacheSize      Key = "image.cache_size"
	KeyPullTimeout    Key = "image.pull_timeout"
)

// Variable returns the name of the environment variable that sets the key.
func (k Key) Variable() string {
	return "SANDPIT_" + strings.ToUpper(strings.ReplaceAll(string(k), ".", "_"))
}

// split returns the section ("" for none) and the name within it.
func (k Key) split() (section, name string) {
	section, name, found := strings.Cut(string(k), ".")
	if !found {
		return "", section
	}
	return section, name
}

// setting says how a value gets into the Config. The value is what the TOML
// decoder makes of it, or a word when it comes from a variable or a flag.
type setting struct {
	key Key
	set func(c *Config, value any) error
}

// word is a value in text form that no TOML type is known for yet.
type word string

// settings lists every setting there is. It is a function so that nothing is
// shared.
func settings() []setting {
	return []setting{
		{KeyEngine, func(c *Config, v any) error { return setPath(&c.Engine, v) }},
		{KeyStateDir, func(c *Config, v any) error { return setPath(&c.StateDir, v) }},
		{KeyCacheDir, func(c *Config, v any) error { return setPath(&c.CacheDir, v) }},
		{KeyRuntimeDir, func(c *Config, v any) error { return setPath(&c.RuntimeDir, v) }},
		{KeyUseSandbox, func(c *Config, v any) error { return setBool(&c.Sandbox.UseSandbox, v) }},
		{KeyImage, func(c *Config, v any) error { return setImage(&c.Sandbox.Image, v) }},
		{KeyWorkDir, func(c *Config, v any) error { return setWorkDir(&c.Sandbox.WorkDir, v) }},
		{KeyMemoryLimit, func(c *Config, v any) error { return setSize(&c.Sandbox.MemoryLimit, v, minMemory, "32m") }},
		{KeyCPULimit, func(c *Config, v any) error { return setCPU(&c.Sandbox.CPULimit, v) }},
		{KeyDiskLimit, func(c *Config, v any) error { return setSize(&c.Sandbox.DiskLimit, v, minDisk, "1m") }},
		{KeyPIDsLimit, func(c *Config, v any) error { return setPIDs(&c.Sandbox.PIDsLimit, v) }},
		{KeyTimeout, func(c *Config, v any) error { return setTimeout(&c.Sandbox.Timeout, v) }},
		{KeyNetworkEnabled, func(c *Config, v any) error { return setBool(&c.Sandbox.NetworkEnabled, v) }},
		{KeyCommandScreen, func(c *Config, v any) error { return setScreen(&c.Sandbox.CommandScreen, v) }},
		{KeyImagePull, func(c *Config, v any) error { return setPull(&c.Image.Pull, v) }},
		{KeyImageMirrors, func(c *Config, v any) error { return setMirrors(&c.Image.Mirrors, v) }},
		{KeyImageInsecure, func(c *Config, v any) error { return setHosts(&c.Image.Insecure, v) }},
		{KeyImageAuth, func(c *Config, v any) error { return setAuth(&c.Image.Auth, v) }},
		{KeyDockerConfig, func(c *Config, v any) error { return setPath(&c.Image.DockerConfig, v) }},
		{KeyCacheSize, func(c *Config, v any) error { return setCacheSize(&c.Image.CacheSize, v) }},
		{KeyPullTimeout, func(c *Config, v any) error { return setPullTimeout(&c.Image.PullTimeout, v) }},
	}
}

func findSetting(key Key) (setting, bool) {
	for _, s := range settings() {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

// namesIn returns the names of the settings in a section, "" being none.
func namesIn(section string) []string {
	var names []string
	for _, s := range settings() {
		if sec, name := s.key.split(); sec == section {
			names = append(names, name)
		}
	}
	return names
}

// textOf returns the text of a TOML string or a word.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case word:
		return string(v), true
	}
	return "", false
}

func setBool(field *bool, v any) error {
	switch v {
	case true, word("true"), word("1"):
		*field = true
		return nil
	case false, word("false"), word("0"):
		*field = false
		return nil
	}
	if _, quoted := v.(string); quoted {
		return fmt.Errorf("%s is text; use true or false without quotes", show(v))
	}
	return fmt.Errorf("%s is neither true nor false", show(v))
}

func setImage(field *sandpit.Image, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok:
		return fmt.Errorf("%s is not the name of an image; use text, for example \"python:3.12-slim\"", show(v))
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("is empty; leave it out for %q", sandpit.HostImage)
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", show(v))
	}
	*field = sandpit.Image(text)
	return nil
}

func setWorkDir(field *string, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok || !path.IsAbs(text):
		return fmt.Errorf("%s is not an absolute path; use for example %s", show(v), sandpit.DefaultWorkDir)
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", show(v))
	case path.Clean(text) != text:
		return fmt.Errorf("%s is not a clean path; write %q", show(v), path.Clean(text))
	}
	*field = text
	return nil
}

// setPath takes a path of the machine, which unlike a path inside a sandbox
// may be written untidily.
func setPath(field *string, v any) error {
	text, ok := textOf(v)
	switch {
	case !ok || !filepath.IsAbs(text):
		return fmt.Errorf("%s is not an absolute path; it must start with /", show(v))
	case hasControl(text):
		return fmt.Errorf("%s has a control character in it", show(v))
	}
	*field = filepath.Clean(text)
	return nil
}

// The least of each size. A sandbox does not start with less memory.
const (
	minMemory = 32 << 20
	minDisk   = 1 << 20
)

func setSize(field *int64, v any, least int64, leastText string) error {
	size, isNumber := v.(int64)
	if !isNumber {
		text, ok := textOf(v)
		if !ok {
			return fmt.Errorf("%s is not a size; use for example \"512m\" or \"2g\"", show(v))
		}
		var err error
		if size, err = ParseSize(text); err != nil {
			return err
		}
	}
	if size < least {
		return fmt.Errorf("%s is too small; use at least %s", show(v), leastText)
	}
	*field = size
	return nil
}

const maxPIDs = 1 << 20

func setPIDs(field *int, v any) error {
	n, isNumber := v.(int64)
	if w, ok := v.(word); ok {
		var err error
		n, err = strconv.ParseInt(string(w), 10, 64)
		isNumber = err == nil
	}
	if !isNumber || n < 1 || n > maxPIDs {
		return fmt.Errorf("%s is not a number of processes; use 1 to %d", show(v), maxPIDs)
	}
	*field = int(n)
	return nil
}

const (
	minCPU = 0.01 // the least a cgroup quota can say
	maxCPU = 1024
)

func setCPU(field *float64, v any) error {
	var cpus float64
	switch n := v.(type) {
	case float64:
		cpus = n
	case int64:
		cpus = float64(n)
	case word:
		var err error
		if cpus, err = strconv.ParseFloat(string(n), 64); err != nil {
			return notCPUs(v)
		}
	default:
		return notCPUs(v)
	}
	if !(cpus >= minCPU && cpus <= maxCPU) { // also true of NaN
		return fmt.Errorf("%s is out of range; use 0.01 to 1024", show(v))
	}
	*field = cpus
	return nil
}

func notCPUs(v any) error {
	return fmt.Errorf("%s is not a number of CPUs; use for example 0.5 or 2", show(v))
}

func setScreen(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || !slices.Contains([]string{ScreenOff, ScreenWarn, ScreenAsk, ScreenDeny}, text) {
		return fmt.Errorf("%s is not one of off, warn, ask, deny", show(v))
	}
	*field = text
	return nil
}

func setTimeout(field *time.Duration, v any) error {
	limit, err := timeoutOf(v)
	switch {
	case err != nil:
		return fmt.Errorf("%s %w", show(v), err)
	case limit <= 0:
		return fmt.Errorf("%s is no time at all; use at least 1, or leave it out for 300", show(v))
	}
	*field = limit
	return nil
}

func timeoutOf(v any) (time.Duration, error) {
	if seconds, ok := v.(int64); ok {
		return secondsToDuration(seconds)
	}
	if text, ok := textOf(v); ok {
		return parseTimeout(text)
	}
	return 0, errNotTime
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// show renders a value for a message: short, on one line.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case word:
		return quote(string(v))
	case bool, int64, float64:
		return fmt.Sprint(v)
	case time.Time:
		return "a date"
	case map[string]any:
		return "a table"
	default:
		return "a list"
	}
}

func quote(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}
