package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// dockerConfig is the part of Docker's config.json that is about logins.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	Store   string            `json:"credsStore"`
	Helpers map[string]string `json:"credHelpers"`
}

// hubLogin is what Docker calls its own registry where it keeps logins.
const hubLogin = "https://index.docker.io/v1/"

// DockerCredentials finds logins as Docker does: in config.json in dir, or with
// the credential helpers (programs called docker-credential-NAME) named there.
// The file is read anew each time. An unreadable file is an error; no file is no
// login.
func DockerCredentials(dir string) CredentialFunc {
	return func(ctx context.Context, registry string) (Credential, error) {
		data, err := readConfigFile(filepath.Join(dir, "config.json"))
		if errors.Is(err, fs.ErrNotExist) || dir == "" {
			return Credential{}, nil
		}
		if err != nil {
			return Credential{}, err
		}
		var c dockerConfig
		if json.Unmarshal(data, &c) != nil { // the error could repeat a password
			return Credential{}, sandpit.Errorf(sandpit.Invalid, "%s is not what Docker writes", filepath.Join(dir, "config.json"))
		}
		return c.find(ctx, registry)
	}
}

func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return readDocument(f)
}

func (c dockerConfig) find(ctx context.Context, registry string) (Credential, error) {
	server := registry
	if registry == hub {
		server = hubLogin
	}
	helper := c.Helpers[registry]
	if helper == "" {
		helper = c.Helpers[server]
	}
	if helper == "" {
		helper = c.Store
	}
	if helper != "" {
		found, err := askHelper(ctx, helper, server)
		if err != nil || found != (Credential{}) {
			return found, err
		}
	}
	for key, a := range c.Auths {
		if hostOf(key) != registry {
			continue
		}
		found := Credential{User: a.Username, Password: a.Password, Token: a.IdentityToken}
		if plain, err := base64.StdEncoding.DecodeString(a.Auth); err == nil && a.Auth != "" {
			found.User, found.Password, _ = strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		}
		return found, nil
	}
	return Credential{}, nil
}

// hostOf returns the registry that Docker means with a key of its file.
func hostOf(key string) string {
	if key == hubLogin {
		return hub
	}
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return hub
	}
	return host
}

var helperPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// helperTime is how long a helper may take: it may ask a person.
const helperTime = time.Minute

// askHelper asks a credential helper for a login. It is not given to anybody but
// the registry, and what the helper says besides is not shown.
func askHelper(ctx context.Context, name, server string) (Credential, error) {
	if !helperPattern.MatchString(name) {
		return Credential{}, sandpit.Errorf(sandpit.Invalid, "Docker's configuration names the credential helper %s", quote(name))
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	program := "docker-credential-" + name
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &bounder{left: 64 << 10}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if bytes.Contains(out.Bytes(), []byte("credentials not found")) {
			return Credential{}, nil
		}
		return Credential{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "the credential helper %s does not work: %w", program, err),
			"repair it, or take it out of Docker's config.json")
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out.Bytes(), &answer) != nil {
		return Credential{}, sandpit.Errorf(sandpit.Unavailable, "the credential helper %s answers with something else", program)
	}
	if answer.Username == "<token>" {
		return Credential{Token: answer.Secret}, nil
	}
	return Credential{User: answer.Username, Password: answer.Secret}, nil
}

// bounder keeps the beginning of what a program writes.
type bounder struct {
	bytes.Buffer
	left int
}

func (b *bounder) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, io.ErrShortWrite
	}
	b.left -= len(p)
	return b.Buffer.Write(p)
}
