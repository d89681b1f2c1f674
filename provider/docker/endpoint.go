package docker

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// Endpoint is the address of an engine. The zero value is Docker's default socket.
type Endpoint struct {
	// Host is a unix:// or tcp:// address, or http:// or https://.
	Host string
	// CA, Cert and Key are files for TLS. Default: no encryption.
	CA, Cert, Key string
}

const usualSocket = "/var/run/docker.sock"

// Surroundings are the settings from which FindEndpoint finds a user's engine, like Docker's own
// command line.
type Surroundings struct {
	Host       string // DOCKER_HOST
	Context    string // DOCKER_CONTEXT
	ConfigDir  string // DOCKER_CONFIG, by default ~/.docker
	CertPath   string // DOCKER_CERT_PATH
	TLSVerify  bool   // DOCKER_TLS_VERIFY is set
	RuntimeDir string // XDG_RUNTIME_DIR
}

// FindEndpoint returns the address of the user's engine. In this order, it uses the host, the
// context, the current context of Docker's configuration, and the first existing socket of Docker,
// rootless Docker and Podman. It does not connect.
//
// NotFound: no such context. Unsupported: an address of another kind.
func FindEndpoint(s Surroundings) (Endpoint, error) {
	if s.Host != "" {
		e := Endpoint{Host: s.Host}
		certs := s.CertPath
		if certs == "" {
			certs = s.ConfigDir
		}
		if s.TLSVerify || s.CertPath != "" {
			e.CA, e.Cert, e.Key = filepath.Join(certs, "ca.pem"), filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
		}
		return e, e.checkEndpoint()
	}
	name := s.Context
	if name == "" {
		var config struct {
			CurrentContext string `json:"currentContext"`
		}
		err := readJSON(filepath.Join(s.ConfigDir, "config.json"), &config)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return Endpoint{}, err
		}
		name = config.CurrentContext
	}
	if name != "" && name != "default" {
		return contextEndpoint(s.ConfigDir, name)
	}
	sockets := []string{usualSocket}
	if s.RuntimeDir != "" {
		sockets = append(sockets, filepath.Join(s.RuntimeDir, "docker.sock"), filepath.Join(s.RuntimeDir, "podman/podman.sock"))
	}
	for _, path := range append(sockets, "/run/podman/podman.sock") {
		if info, err := os.Stat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			return Endpoint{Host: "unix://" + path}, nil
		}
	}
	return Endpoint{Host: "unix://" + usualSocket}, nil
}

// contextEndpoint reads a context of Docker's command line.
func contextEndpoint(dir, name string) (Endpoint, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	err := readJSON(filepath.Join(dir, "contexts/meta", id, "meta.json"), &meta)
	if errors.Is(err, os.ErrNotExist) {
		return Endpoint{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "docker context %q does not exist", name), "docker context ls")
	}
	if err != nil {
		return Endpoint{}, err
	}
	found, ok := meta.Endpoints["docker"]
	if !ok || found.Host == "" {
		return Endpoint{}, sandpit.Errorf(sandpit.Unsupported, "docker context %q names no engine", name)
	}
	if found.SkipTLSVerify {
		return Endpoint{}, sandpit.Errorf(sandpit.Unsupported, "docker context %q skips TLS verification", name)
	}
	e := Endpoint{Host: found.Host}
	certs := filepath.Join(dir, "contexts/tls", id, "docker")
	for file, to := range map[string]*string{"ca.pem": &e.CA, "cert.pem": &e.Cert, "key.pem": &e.Key} {
		if path := filepath.Join(certs, file); fileExists(path) {
			*to = path
		}
	}
	return e, e.checkEndpoint()
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

const maxConfig = 4 << 20 // bytes

func readJSON(path string, to any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return err
	}
	if json.Unmarshal(data, to) != nil { // the error could repeat a password
		return sandpit.Errorf(sandpit.Invalid, "%q is not a valid configuration file of Docker", path)
	}
	return nil
}

func (e Endpoint) checkEndpoint() error {
	scheme, _, found := strings.Cut(e.Host, "://")
	if !found {
		return sandpit.Errorf(sandpit.Invalid, "docker host %q: want an address such as unix:///var/run/docker.sock", e.Host)
	}
	switch scheme {
	case "unix", "tcp", "http", "https":
		return nil
	case "ssh":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "docker host %s: ssh is not supported", e),
			"forward the socket with ssh -L and use it: ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST")
	case "npipe":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "docker host %s: named pipes work only on Windows", e),
			"if Docker Desktop shares its engine with WSL, unset DOCKER_HOST there; otherwise have the engine listen with TLS and use tcp://HOST:2376")
	}
	return sandpit.Errorf(sandpit.Unsupported, "docker host %s: %s is not supported", e, scheme)
}

func (e Endpoint) urlOf() string { return cmp.Or(e.Host, "unix://"+usualSocket) }

// String returns the address without a password.
func (e Endpoint) String() string {
	address := e.urlOf()
	scheme, rest, _ := strings.Cut(address, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		return scheme + "://" + rest[at+1:]
	}
	return address
}

// newClient returns a client. It connects on first use.
func (e Endpoint) newClient() (*client.Client, error) {
	e.Host = e.urlOf()
	if err := e.checkEndpoint(); err != nil {
		return nil, err
	}
	opts := []client.Opt{client.WithHost(e.Host), client.WithUserAgent("sandpit")}
	if e.CA+e.Cert+e.Key != "" {
		opts = append(opts, client.WithTLSClientConfig(e.CA, e.Cert, e.Key))
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "docker host %s: %w", e, err)
	}
	return c, nil
}
