package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Image is the [image] section: where images come from and how many are kept.
type Image struct {
	// Pull says when a registry is asked: "missing" (when the image is not in the cache), "always"
	// or "never".
	Pull string
	// Mirrors are tried in order before the registry that is the key.
	Mirrors map[string][]string
	// Insecure are registries that may be spoken to without encryption, besides those of this
	// machine.
	Insecure []string
	// Registries are those at addresses that are not public, by name or as ranges of addresses,
	// which users of a server may have images fetched from. Administrators may have all of them
	// asked.
	Registries []string
	// Auth is logins by registry, besides those that Docker knows.
	Auth map[string]Login
	// DockerConfig is the directory of Docker's config.json, where logins are.
	DockerConfig string
	// CacheSize is how many bytes of images are kept; those used least recently go first.
	CacheSize int64
	// OwnerCacheSize is how many of these each owner of a server may have. 0 is half of CacheSize.
	OwnerCacheSize int64
	// MaxPulls is how many images a server fetches at a time; each owner has half of these places,
	// and further requests wait.
	MaxPulls int
	// PullTimeout is how long fetching one image may take.
	PullTimeout time.Duration
	// PrePull are images that a server makes ready when it starts, for its default provider.
	PrePull []string
}

// Login is a name and a password.
type Login struct{ User, Password string }

// String hides it.
func (Login) String() string { return hidden }

// GoString hides it.
func (Login) GoString() string { return hidden }

// MarshalText hides it.
func (Login) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// hostPattern matches a registry with its port, and the path that a mirror may
// have below it.
var hostPattern = pattern.New(`^(\[[0-9a-fA-F:]+\]|[a-zA-Z0-9][a-zA-Z0-9.-]*)(:[0-9]{1,5})?(/[a-z0-9._/-]+)?$`)

func checkHost(host string) error {
	if !hostPattern().MatchString(host) {
		return fmt.Errorf("%s is not a registry; write for example ghcr.io or localhost:5000", quoteText(host))
	}
	return nil
}

func setHosts(field *[]string, v any) error {
	hosts, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of registries; use for example [\"registry.lan:5000\"]", shortValue(v))
	}
	for _, host := range hosts {
		if err := checkHost(host); err != nil {
			return err
		}
	}
	*field = hosts
	return nil
}

// setRegistries reads registries and ranges of addresses.
func setRegistries(field *[]string, v any) error {
	list, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of registries; use for example [\"registry.lan:5000\", \"10.1.0.0/16\"]", shortValue(v))
	}
	for _, text := range list {
		if _, err := netip.ParsePrefix(text); err == nil {
			continue
		}
		if err := checkHost(text); err != nil {
			return err
		}
	}
	*field = list
	return nil
}

// setImages reads a list of images' names.
func setImages(field *[]string, v any) error {
	names, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of images; use for example [\"python:3.12-slim\"]", shortValue(v))
	}
	if slices.Contains(names, "") {
		return errors.New("the name of an image is empty")
	}
	*field = names
	return nil
}

// listOf returns a list of texts; a word has commas between them.
func listOf(v any) ([]string, bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, true
	case word:
		return strings.FieldsFunc(string(v), func(r rune) bool { return r == ',' || r == ' ' }), true
	case []any:
		var list []string
		for _, e := range v {
			text, ok := e.(string)
			if !ok {
				return nil, false
			}
			list = append(list, text)
		}
		return list, true
	}
	return nil, false
}

// setMirrors reads a table, or words such as docker.io=one,two ghcr.io=three.
func setMirrors(field *map[string][]string, v any) error {
	const form = "is not a table of mirrors; use for example { \"docker.io\" = [\"localhost:5000\"] }"
	table := map[string]any{}
	switch v := v.(type) {
	case map[string]any:
		table = v
	case word:
		for item := range strings.FieldsSeq(string(v)) {
			name, list, ok := strings.Cut(item, "=")
			if !ok {
				return fmt.Errorf("%s is not a list of mirrors; use for example docker.io=localhost:5000", shortValue(v))
			}
			table[name] = word(list)
		}
	default:
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	mirrors := make(map[string][]string, len(table))
	for name, list := range table {
		hosts, ok := listOf(list)
		if !ok {
			return fmt.Errorf("%s: %s %s", quoteText(name), shortValue(list), form)
		}
		for _, host := range append(slices.Clone(hosts), name) {
			if err := checkHost(host); err != nil {
				return err
			}
		}
		mirrors[name] = hosts
	}
	*field = mirrors
	return nil
}

// setAuth reads registry=user:password, several with spaces between them. What is
// wrong is never shown.
func setAuth(field *map[string]Login, v any) error {
	text, ok := textOf(v)
	if !ok {
		return errors.New("is not text; use registry=user:password")
	}
	logins := map[string]Login{}
	for i, item := range strings.Fields(text) {
		registry, login, ok1 := strings.Cut(item, "=")
		user, password, ok2 := strings.Cut(login, ":")
		if !ok1 || !ok2 || user == "" || checkHost(registry) != nil {
			return fmt.Errorf("login %d is not of the form registry=user:password", i+1)
		}
		logins[registry] = Login{User: user, Password: password}
	}
	*field = logins
	return nil
}

// minCache is what one small image takes.
const minCache = 64 << 20
