// Package mcpclient is a client of MCP servers for a session in a sandbox. Servers that are
// programs run in the sandbox as the session's user; servers with a URL are contacted from
// the sandbox, as far as its network policy allows. Only one with Server.Host is on this machine. A server is
// started by the first call that needs it, and again after it has ended.
//
// Servers may be added and removed at any time.
//
// Messages of servers are bounded and checked, because servers may be hostile. The client
// offers them no capabilities: no sampling, no elicitation, no roots.
package mcpclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Type is the transport of a server.
type Type string

// The types.
const (
	Stdio Type = "stdio" // a program with messages on its standard streams
	HTTP  Type = "http"  // streamable HTTP
	SSE   Type = "sse"   // HTTP with server-sent events, the transport of 2024
)

// Server configures one server.
type Server struct {
	// Type is the transport. Default: stdio for a command; for a URL, HTTP and then SSE are tried.
	Type Type `json:"type,omitempty"`
	// Command is the program, with Args, Env and the directory Dir (default: the session's).
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"cwd,omitempty"`
	// URL is an http or https URL. Headers are sent only to it.
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Host is true for a server that runs on this machine, or is contacted from it, outside of the
	// sandbox. No file can say so: only the program that has read it.
	Host bool `json:"-"`
	// Disabled servers are ignored.
	Disabled bool `json:"disabled,omitempty"`
}

// Config maps names to servers.
type Config map[string]Server

const (
	maxConfig   = 1 << 20 // bytes
	mostServers = 64
	maxName     = 64 // bytes
)

// Parse parses a configuration in the common form of MCP clients:
// {"mcpServers": {"NAME": {"command": "…", "args": ["…"], "env": {}}}}.
//
// Invalid: the configuration has an error.
func Parse(data []byte) (Config, error) {
	if len(data) > maxConfig {
		return nil, sandpit.Errorf(sandpit.Invalid, "the list of MCP servers has more than %d bytes", maxConfig)
	}
	var file struct {
		Servers Config `json:"mcpServers"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "the list of MCP servers: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, sandpit.Errorf(sandpit.Invalid, "the list of MCP servers: want one JSON object and nothing after it")
	}
	servers := Config{}
	for name, s := range file.Servers {
		if s.Disabled {
			continue
		}
		s, err := Check(name, s)
		if err != nil {
			return nil, err
		}
		servers[name] = s
	}
	if len(servers) > mostServers {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d MCP servers; want at most %d", len(servers), mostServers)
	}
	return servers, nil
}

// Check checks a server and its name, and returns it with its type: "" for a URL whose type is
// unknown. Invalid: one of them has an error.
func Check(name string, s Server) (Server, error) {
	s, err := s.withType()
	if err == nil {
		err = checkName(name)
	}
	if err != nil {
		return s, sandpit.Errorf(sandpit.Invalid, "MCP server %.100q: %w", name, err)
	}
	return s, nil
}

func checkName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return sandpit.Errorf(sandpit.Invalid, "want a name of printable characters, at most %d bytes", maxName)
	}
	return nil
}

// withType checks a server and sets its type: "" for a URL whose type is unknown.
func (s Server) withType() (Server, error) {
	switch s.Type {
	case "streamable-http", "streamable_http", "streamableHttp":
		s.Type = HTTP
	case Stdio, HTTP, SSE:
	case "":
		if s.Command != "" {
			s.Type = Stdio
		}
	default:
		return s, sandpit.Errorf(sandpit.Invalid, "unknown type %.100q; want stdio, http or sse", string(s.Type))
	}
	if s.Type == Stdio {
		return s, s.checkProgram()
	}
	return s, s.checkURL()
}

func (s Server) checkProgram() error {
	if s.Command == "" || s.URL != "" || len(s.Headers) > 0 {
		return sandpit.Errorf(sandpit.Invalid, "want a command for a server of type stdio, and neither url nor headers")
	}
	if s.Dir != "" && !path.IsAbs(s.Dir) {
		return sandpit.Errorf(sandpit.Invalid, "cwd %.100q: want an absolute path", s.Dir)
	}
	for name, value := range s.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return sandpit.Errorf(sandpit.Invalid, "invalid env %.100q", name)
		}
	}
	if strings.Contains(s.Command+strings.Join(s.Args, ""), "\x00") {
		return sandpit.Errorf(sandpit.Invalid, "the command contains a zero byte")
	}
	return nil
}

func (s Server) checkURL() error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return sandpit.Errorf(sandpit.Invalid, "want a command, or a url that begins with http:// or https://, without a password")
	}
	if s.Command != "" || len(s.Args) > 0 || len(s.Env) > 0 || s.Dir != "" {
		return sandpit.Errorf(sandpit.Invalid, "a server with a url has neither command, args, env nor cwd")
	}
	for name, value := range s.Headers {
		if !headerPattern().MatchString(name) || strings.ContainsAny(value, "\r\n\x00") {
			return sandpit.Errorf(sandpit.Invalid, "invalid header %.100q", name)
		}
	}
	return nil
}

var (
	headerPattern = pattern.New("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	secretPattern = pattern.New(`(?i)key|token|secret|passw|credential|auth|cookie|session|signature|pat$`)
)

// Secrets returns the values to hide from output: those of variables and headers with names
// such as key or token.
func (c Config) Secrets() []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		for _, values := range []map[string]string{c[name].Env, c[name].Headers} {
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if !secretPattern().MatchString(key) {
					continue
				}
				found = append(found, values[key])
				if scheme, credentials, ok := strings.Cut(values[key], " "); ok && scheme != "" { // "Bearer …"
					found = append(found, strings.TrimSpace(credentials))
				}
			}
		}
	}
	return found
}
