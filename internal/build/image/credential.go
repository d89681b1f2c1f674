package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/credentials"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// hubLogin is the name of docker.io in Docker's logins.
const hubLogin = "https://index.docker.io/v1/"

// DockerCredentials finds logins as Docker does: in config.json in dir, or with
// the credential helpers (programs called docker-credential-NAME) named there.
// It reads the file for each login. An unreadable file is an error; without a file there
// are no logins.
func DockerCredentials(dir string) CredentialFunc {
	return func(ctx context.Context, registry string) (Credential, error) {
		data, err := readConfigFile(filepath.Join(dir, "config.json"))
		if errors.Is(err, fs.ErrNotExist) || dir == "" {
			return Credential{}, nil
		}
		if err != nil {
			return Credential{}, err
		}
		c, err := config.LoadFromReader(bytes.NewReader(data))
		if err != nil { // it could repeat a password
			return Credential{}, sandpit.Errorf(sandpit.Invalid, "%s is not a configuration file of Docker", filepath.Join(dir, "config.json"))
		}
		return findLogin(ctx, c, registry)
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

// findLogin asks the credential helper for the registry, then looks in the file.
func findLogin(ctx context.Context, c *configfile.ConfigFile, registry string) (Credential, error) {
	servers := []string{registry}
	if registry == hub {
		servers = []string{hubLogin, hub, "index.docker.io", "registry-1.docker.io"}
	}
	helper := cmp.Or(c.CredentialHelpers[registry], c.CredentialHelpers[servers[0]], c.CredentialsStore)
	if helper != "" {
		found, err := askHelper(ctx, helper, servers[0])
		if err != nil || found != (Credential{}) {
			return found, err
		}
	}
	file := credentials.NewFileStore(c)
	for _, server := range servers {
		found, err := file.Get(server)
		if err != nil || found.Username+found.IdentityToken != "" {
			return Credential{User: found.Username, Password: found.Password, Token: found.IdentityToken}, err
		}
	}
	return Credential{}, nil
}

var helperPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// helperTimeout bounds the time of a credential helper, which may ask the user.
const helperTimeout = time.Minute

// askHelper asks a credential helper for a login. Errors do not include the helper's output,
// which may contain the login.
func askHelper(ctx context.Context, name, server string) (Credential, error) {
	if !helperPattern().MatchString(name) {
		return Credential{}, sandpit.Errorf(sandpit.Invalid, "Docker's configuration: invalid credential helper %s", quoteName(name))
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	program := "docker-credential-" + name
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	out := &boundedBuffer{left: 64 << 10}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if bytes.Contains(out.data, []byte("credentials not found")) {
			return Credential{}, nil
		}
		return Credential{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "credential helper %s: %w", program, err),
			"repair it, or remove it from Docker's config.json")
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out.data, &answer) != nil {
		return Credential{}, sandpit.Errorf(sandpit.Unavailable, "credential helper %s: unexpected output", program)
	}
	if answer.Username == "<token>" {
		return Credential{Token: answer.Secret}, nil
	}
	return Credential{User: answer.Username, Password: answer.Secret}, nil
}

// boundedBuffer stores the output of a program up to a limit. It does not embed a
// bytes.Buffer, whose ReadFrom would bypass the limit.
type boundedBuffer struct {
	data []byte
	left int
}

// Write fails above the limit, which ends the program.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, io.ErrShortWrite
	}
	b.left -= len(p)
	b.data = append(b.data, p...)
	return len(p), nil
}

type credentialKey struct{}

// contextLogin is a login for one registry in a context.
type contextLogin struct {
	registry string
	login    Credential
}

// WithCredential returns a context in which c is the login for the registry of an image
// instead of what Options.Credentials returns.
//
// Invalid: the image is not from a registry.
func WithCredential(ctx context.Context, ref sandpit.Image, c Credential) (context.Context, error) {
	r, err := parseReference(string(ref))
	if err == nil && (r.registry == "" || IsPath(string(ref))) {
		err = sandpit.Errorf(sandpit.Invalid, "image %s: not an image of a registry, so a login has no use", quoteName(string(ref)))
	}
	return context.WithValue(ctx, credentialKey{}, contextLogin{r.registry, c}), err
}

// withContextLogin returns a CredentialFunc that looks in the context before it calls f.
func withContextLogin(f CredentialFunc) CredentialFunc {
	return func(ctx context.Context, registry string) (Credential, error) {
		if l, ok := ctx.Value(credentialKey{}).(contextLogin); ok && l.registry == registry {
			return l.login, nil
		}
		return f(ctx, registry)
	}
}
