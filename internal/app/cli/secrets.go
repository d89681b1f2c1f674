package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// maxSecretFile bounds a file with a secret, in bytes.
const maxSecretFile = 64 << 10

// parseSecrets reads the values of NAME, from this program's environment, and NAME=@FILE. Other
// users of the machine could read a value on the command line.
func (a *app) parseSecrets(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	secrets := make(map[string]string, len(list))
	for _, s := range list {
		name, from, ok := strings.Cut(s, "=")
		file, isFile := strings.CutPrefix(from, "@")
		switch {
		case ok && !isFile, name == "", isFile && file == "":
			return nil, sandpit.Errorf(sandpit.Invalid, "--secret: want the NAME of a variable of this shell, or NAME=@FILE")
		case !ok:
			value, set := lookupEnv(a.options.Environ, name)
			if !set {
				return nil, sandpit.Errorf(sandpit.Invalid, "--secret %s: no such variable in this shell", name)
			}
			secrets[name] = value
		default:
			value, err := readSecret(file)
			if err != nil {
				return nil, sandpit.Errorf(sandpit.CodeOf(err), "--secret %s: %w", name, err)
			}
			secrets[name] = value
		}
	}
	return secrets, nil
}

// readSecret returns the content of a file without the end of its last line.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	return strings.TrimRight(string(data), "\r\n"), err
}

// sandboxSecrets are the secrets of a new sandbox: those that headers refer to never enter it;
// the others are for its programs.
type sandboxSecrets struct{ network, programs map[string]string }

func (n networkFlags) readSecrets(a *app) (sandboxSecrets, error) {
	s := sandboxSecrets{network: make(map[string]string), programs: make(map[string]string)}
	for _, text := range n.secrets {
		name, value, plain := strings.Cut(text, "=")
		one := map[string]string{name: value}
		if !plain || name == "" || strings.HasPrefix(value, "@") {
			var err error
			if one, err = a.parseSecrets([]string{text}); err != nil {
				return s, err
			}
		}
		if slices.ContainsFunc(n.headers, func(h string) bool { return strings.Contains(h, "${"+name+"}") }) {
			maps.Copy(s.network, one)
		} else {
			maps.Copy(s.programs, one)
		}
	}
	return s, nil
}

// giveSecrets gives the secrets to a new sandbox on this machine.
func (n networkFlags) giveSecrets(ctx context.Context, a *app, box sandpit.Instance) error {
	secrets, err := n.readSecrets(a)
	if err != nil {
		return err
	}
	return secrets.giveTo(ctx, box)
}

// values returns the values of all secrets.
func (s sandboxSecrets) values() []string {
	return slices.Concat(slices.Collect(maps.Values(s.programs)), slices.Collect(maps.Values(s.network)))
}

// giveTo gives the secrets to a new sandbox on this machine.
func (s sandboxSecrets) giveTo(ctx context.Context, box sandpit.Instance) error {
	if len(s.programs) > 0 {
		keeper, ok := sandpit.As[sandpit.Secreter](box.Guest())
		if !ok {
			return sandpit.Errorf(sandpit.Unsupported, "--secret: this sandbox's guest does not support secrets")
		}
		if err := keeper.SetSecrets(ctx, s.programs); err != nil {
			return err
		}
	}
	if len(s.network) == 0 {
		return nil
	}
	keeper, ok := sandpit.As[sandpit.NetworkSecreter](box)
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "--secret: this sandbox's network does not support headers")
	}
	return keeper.SetNetworkSecrets(ctx, s.network)
}

// readBuildSecrets reads the values of secrets, which are never arguments.
func readBuildSecrets(a *app, list []string) (map[string]string, error) {
	const longest = 64 << 10
	values := map[string]string{}
	for _, text := range list {
		name, file, isFile := strings.Cut(text, "=")
		value, found := lookupEnv(a.options.Environ, name)
		if isFile {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("--secret %s: %w", name, err)
			}
			value, found = strings.TrimSuffix(string(data), "\n"), true
		}
		if !found || value == "" || len(value) > longest {
			return nil, sandpit.Errorf(sandpit.Invalid, "--secret %s: it has no value, or one of more than %d bytes", name, longest)
		}
		values[name] = value
	}
	return values, nil
}
