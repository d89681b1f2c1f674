package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

func setURL(field *string, v any) error {
	const form = "is not the address of a server; use for example http://127.0.0.1:8090 or unix:///run/sandpit/sandpit.sock"
	text, ok := textOf(v)
	if !ok || hasControl(text) {
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil: // may hold a password, so it is not repeated
		return errors.New(form)
	case (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.RawQuery == "" && u.Fragment == "":
		text = strings.TrimRight(text, "/")
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
	default:
		return fmt.Errorf("%s %s", shortValue(v), form)
	}
	*field = text
	return nil
}

// maxKey bounds an API key, in bytes.
const maxKey = 512

func setDirectory(field *string, v any) error {
	text, ok := textOf(v)
	u, err := url.Parse(text)
	if !ok || err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || hasControl(text) {
		return errors.New("is not the address of an ACME directory; use for example https://acme.example.com/directory")
	}
	*field = text
	return nil
}

func setEmail(field *string, v any) error {
	text, ok := textOf(v)
	name, host, found := strings.Cut(text, "@")
	if !ok || !found || name == "" || len(text) > 254 || !dnsPattern().MatchString(host) || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s is not an e-mail address; use for example admin@example.com", shortValue(v))
	}
	*field = text
	return nil
}

// setKey never shows what is wrong.
func setKey(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || text == "" || len(text) > maxKey || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is not an API key; use the secret that sandpit key create printed")
	}
	*field = Secret(text)
	return nil
}

// setRedisURL never shows what is wrong: there may be a password in it.
func setRedisURL(field *Secret, v any) error {
	text, ok := textOf(v)
	scheme, rest, found := strings.Cut(text, "://")
	if !ok || !found || rest == "" || hasControl(text) || !slices.Contains([]string{"redis", "rediss", "unix"}, scheme) {
		return errors.New("is not the address of a Redis server; use for example redis://localhost:6379")
	}
	*field = Secret(text)
	return nil
}

// setBucket takes the URL of a bucket. What may hold a password is not repeated.
func setBucket(field *string, v any) error {
	text, ok := textOf(v)
	u, err := url.Parse(text)
	if !ok || hasControl(text) || err != nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" ||
		strings.Trim(u.Path, "/") == "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("is not the URL of a bucket; use for example https://s3.example.com/bucket/prefix")
	}
	*field = strings.TrimRight(text, "/")
	return nil
}

// setAccessKey takes a key of a store. It is not repeated.
func setAccessKey(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || text == "" || hasControl(text) || strings.ContainsRune(text, ' ') {
		return errors.New("is not a key of a store")
	}
	*field = Secret(text)
	return nil
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func setName(field *string, v any) error {
	text, ok := textOf(v)
	if !ok || !namePattern().MatchString(text) {
		return fmt.Errorf("%s is not a name; use letters, digits, '.', '_' and '-', at most 64", shortValue(v))
	}
	*field = text
	return nil
}

func setListen(field *string, v any) error {
	text, ok := textOf(v)
	if ok && text == None {
		*field = text
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	n, numErr := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || numErr != nil || hasControl(text) || strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%s is not an address to listen on; use for example 127.0.0.1:8090, or none", shortValue(v))
	}
	*field = net.JoinHostPort(host, strconv.FormatUint(n, 10))
	return nil
}

// maxSocket is the longest path of a Unix socket.
const maxSocket = 107

func setSocket(field *string, v any) error {
	if text, ok := textOf(v); ok && text == None {
		*field = text
		return nil
	}
	var path string
	if err := setPath(&path, v); err != nil {
		return fmt.Errorf("%w, or be none", err)
	}
	if len(path) > maxSocket {
		return fmt.Errorf("%s is too long for a socket; use at most %d bytes", shortValue(v), maxSocket)
	}
	*field = path
	return nil
}

var dnsPattern = pattern.New(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

func setNames(field *[]string, v any) error {
	names, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of host names; use for example [\"sandpit.example.com\"]", shortValue(v))
	}
	for i, name := range names {
		if len(name) > 253 || !dnsPattern().MatchString(name) {
			return fmt.Errorf("%s is not a host name; write it without a scheme and a port", quoteText(name))
		}
		names[i] = strings.ToLower(name)
	}
	*field = names
	return nil
}

// setProxies reads addresses and ranges of them.
func setProxies(field *[]string, v any) error {
	list, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of addresses; use for example [\"10.0.0.5\", \"192.168.1.0/24\"]", shortValue(v))
	}
	proxies := make([]string, len(list))
	for i, text := range list {
		if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
			address = address.Unmap()
			proxies[i] = netip.PrefixFrom(address, address.BitLen()).String()
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("%s is not an address; use for example 10.0.0.5 or 192.168.1.0/24", quoteText(text))
		}
		proxies[i] = prefix.Masked().String()
	}
	*field = proxies
	return nil
}

// minToken is the minimum length of a token, in bytes, so that it cannot be guessed.
const minToken = 16

// setToken never shows what is wrong.
func setToken(field *Secret, v any) error {
	text, ok := textOf(v)
	if !ok || len(text) < minToken || len(text) > maxKey || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("is not a token; use %d to %d letters, digits and other visible ASCII characters", minToken, maxKey)
	}
	*field = Secret(text)
	return nil
}

// setPaths reads a list of paths; a word has colons between them.
func setPaths(field *[]string, v any) error {
	var list []string
	if w, ok := v.(word); ok {
		list = strings.FieldsFunc(string(w), func(r rune) bool { return r == ':' })
	} else if list, ok = listOf(v); !ok {
		return fmt.Errorf("%s is not a list of paths; use for example [\"/srv/data\"]", shortValue(v))
	}
	paths := make([]string, len(list))
	for i, path := range list {
		if err := setPath(&paths[i], path); err != nil {
			return err
		}
	}
	*field = paths
	return nil
}

func setLifetime(field *time.Duration, v any) error {
	limit, err := timeoutOf(v)
	if err == nil && limit < 0 {
		err = errors.New("is below zero; use 0 for ever")
	}
	if err != nil {
		return fmt.Errorf("%s %w", shortValue(v), err)
	}
	*field = limit
	return nil
}

func setInterval(field *time.Duration, v any) error {
	every, err := timeoutOf(v)
	if err == nil && every < 0 {
		err = errors.New("is below zero; use 0 for never")
	}
	if err != nil {
		return fmt.Errorf("%s %w", shortValue(v), err)
	}
	*field = every
	return nil
}

func setQuotas(field *map[string]int, v any) error {
	return setCounts(field, v, `{ alice = 5 }`, func(string) bool { return true })
}

func setLabelQuotas(field *map[string]int, v any) error {
	return setCounts(field, v, `{ "team=red" = 5 }`, func(label string) bool {
		key, _, ok := strings.Cut(label, "=")
		return ok && key != ""
	})
}

// setCounts reads a table of numbers, or words such as alice=5 team=red=2: a label's name contains "=".
func setCounts(field *map[string]int, v any, example string, isKey func(name string) bool) error {
	return valueTable[int]{
		values: "numbers", key: "name with a limit", example: example,
		cut: func(item string) (name, value string) {
			at := max(strings.LastIndexByte(item, '='), 0)
			return item[:at], strings.TrimPrefix(item[at:], "=")
		},
		isKey: func(name string) bool { return name != "" && len(name) <= 256 && !hasControl(name) && isKey(name) },
		set:   numberOf("sandboxes", 0, 1e6),
	}.read(field, v)
}

// levelNames are the names of levels; those of other languages' loggers are known, too.
func levelNames() map[string]slog.Level {
	return map[string]slog.Level{
		"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "notice": slog.LevelInfo,
		"warn": slog.LevelWarn, "warning": slog.LevelWarn,
		"error": slog.LevelError, "critical": slog.LevelError, "fatal": slog.LevelError,
	}
}

func setLevel(field *slog.Level, v any) error {
	text, ok := textOf(v)
	level, known := levelNames()[strings.ToLower(text)]
	if !ok || !known {
		return fmt.Errorf("%s is not one of debug, info, warn, error", shortValue(v))
	}
	*field = level
	return nil
}

// readLevel reads LOG_LEVEL, which many programs share.
func readLevel(value string) (word, bool) {
	_, known := levelNames()[strings.ToLower(value)]
	return word(value), known
}

// readMode reads ENV_MODE: people watch a local server, machines all others.
func readMode(value string) (word, bool) {
	switch strings.ToLower(value) {
	case "local", "dev", "development":
		return FormatConsole, true
	case "staging", "test", "production", "prod":
		return FormatJSON, true
	}
	return "", false
}

// maxPools bounds how many pools there are.
const maxPools = 64

// setPools reads [[pool]] entries, or words such as host=4 python:3.12-slim=2.
func setPools(field *[]Pool, v any) error {
	var entries []map[string]any
	switch v := v.(type) {
	case []map[string]any:
		entries = v
	case []any: // an array of tables on one line
		for _, e := range v {
			entry, ok := e.(map[string]any)
			if !ok {
				return errNotPools
			}
			entries = append(entries, entry)
		}
	case word:
		for item := range strings.FieldsSeq(string(v)) {
			at := max(strings.LastIndexByte(item, '='), 0)
			entries = append(entries, map[string]any{"image": item[:at], "size": word(strings.TrimPrefix(item[at:], "="))})
		}
	default:
		return errNotPools
	}
	if len(entries) > maxPools {
		return fmt.Errorf("has %d entries; use at most %d", len(entries), maxPools)
	}
	pools := make([]Pool, len(entries))
	for i, entry := range entries {
		if err := pools[i].parseEntry(entry); err != nil {
			return fmt.Errorf("entry %d: %w", i+1, err)
		}
	}
	*field = pools
	return nil
}

var errNotPools = errors.New("is not a list; write [[pool]] on a line of its own above each entry")

// parseEntry fills in p from one entry.
func (p *Pool) parseEntry(entry map[string]any) error {
	setters := map[string]func(any) error{
		"provider":        func(v any) error { return setName(&p.Provider, v) },
		"image":           func(v any) error { return setImage(&p.Image, v) },
		"size":            func(v any) error { return numberOf("sandboxes", 0, 1e4)(&p.Size, v) },
		"max":             func(v any) error { return numberOf("sandboxes", 0, 1e4)(&p.Max, v) },
		"memory_limit":    func(v any) error { return sizeOf(minMemory, "32m", bothSizes)(&p.Resources.Memory, v) },
		"cpu_limit":       func(v any) error { return setCPU(&p.Resources.CPUs, v) },
		"disk_limit":      func(v any) error { return sizeOf(minDisk, "1m", bothSizes)(&p.Resources.Disk, v) },
		"pids_limit":      func(v any) error { return numberOf("processes", 1, 1<<20)(&p.Resources.PIDs, v) },
		"hostname":        func(v any) error { return setName(&p.Hostname, v) },
		"network_enabled": func(v any) error { return setBool(&p.NetworkEnabled, v) },
	}
	for _, name := range slices.Sorted(maps.Keys(entry)) {
		set, known := setters[name]
		if !known {
			return fmt.Errorf("%s: %s", toPrintable(name), unknownKey(name, slices.Sorted(maps.Keys(setters))))
		}
		if err := set(entry[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if p.Size == 0 && p.Max == 0 {
		return errors.New("is empty; give it a size, or a max to learn from demand")
	}
	if p.Max != 0 && p.Max < p.Size {
		return fmt.Errorf("max %d is below size %d", p.Max, p.Size)
	}
	return nil
}

// String says what kind it is, for people.
func (p Pool) String() string {
	image := p.Image
	if image == "" {
		image = "default"
	}
	return string(image) + "=" + strconv.Itoa(p.Size)
}
