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
	"regexp"
	"strings"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/credentials"

	"github.com/sandpit-dev/sandpit"
)

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
		c, err := config.LoadFromReader(bytes.NewReader(data))
		if err != nil { // it could repeat a password
			return Credential{}, sandpit.Errorf(sandpit.Invalid, "%s is not what Docker writes", filepath.Join(dir, "config.json"))
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

// findLogin asks the helper that is responsible, then the file itself.
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

var helperPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// helperTime is how long a helper may take: it may ask a person.
const helperTime = time.Minute

// askHelper asks a credential helper for a login. It is not given to anybody but
// the registry, and what the helper says besides is not shown.
func askHelper(ctx context.Context, name, server string) (Credential, error) {
	if !helperPattern.MatchString(name) {
		return Credential{}, sandpit.Errorf(sandpit.Invalid, "Docker's configuration names the credential helper %s", quoteName(name))
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
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
			sandpit.Errorf(sandpit.Unavailable, "the credential helper %s does not work: %w", program, err),
			"repair it, or take it out of Docker's config.json")
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out.data, &answer) != nil {
		return Credential{}, sandpit.Errorf(sandpit.Unavailable, "the credential helper %s answers with something else", program)
	}
	if answer.Username == "<token>" {
		return Credential{Token: answer.Secret}, nil
	}
	return Credential{User: answer.Username, Password: answer.Secret}, nil
}

// boundedBuffer keeps the beginning of what a program writes. It embeds no buffer, whose
// ReadFrom would take everything.
type boundedBuffer struct {
	data []byte
	left int
}

// Write refuses what is too much, which ends the program.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, io.ErrShortWrite
	}
	b.left -= len(p)
	b.data = append(b.data, p...)
	return len(p), nil
}

type credentialKey struct{}

// contextLogin is a login for one registry that a context carries.
type contextLogin struct {
	registry string
	login    Credential
}

// WithCredential returns a context in which the registry of an image is told c, whatever
// Options.Credentials says.
//
// Invalid: the image is not one of a registry.
func WithCredential(ctx context.Context, ref sandpit.Image, c Credential) (context.Context, error) {
	r, err := parseReference(string(ref))
	if err == nil && (r.registry == "" || IsPath(string(ref))) {
		err = sandpit.Errorf(sandpit.Invalid, "image %s: there is no registry that a login could be for", quoteName(string(ref)))
	}
	return context.WithValue(ctx, credentialKey{}, contextLogin{r.registry, c}), err
}

// withContextLogin asks the context before f.
func withContextLogin(f CredentialFunc) CredentialFunc {
	return func(ctx context.Context, registry string) (Credential, error) {
		if l, ok := ctx.Value(credentialKey{}).(contextLogin); ok && l.registry == registry {
			return l.login, nil
		}
		return f(ctx, registry)
	}
}
