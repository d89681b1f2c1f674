package gvisor

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// Files inside with the authority of the gateway alone, and with all authorities that the
// sandbox trusts.
const (
	authorityPath = "/etc/sandpit/authority.pem"
	trustedPath   = "/etc/sandpit/trusted.pem"
)

// bundlePaths are the files in which systems keep the authorities that they trust.
func bundlePaths() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem", // SUSE
		"/etc/ssl/cert.pem",
	}
}

// trustEnv are the variables for programs that have authorities of their own, or look for
// them elsewhere.
func trustEnv() map[string]string {
	env := map[string]string{"NODE_EXTRA_CA_CERTS": authorityPath, "DENO_CERT": authorityPath}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO",
	} {
		env[name] = trustedPath
	}
	return env
}

// maxBundle bounds what is read of a bundle, inside or on the machine, in bytes.
const maxBundle = 8 << 20

// machineRoots returns the authorities that the machine trusts as PEM. If no bundle is found
// they are empty, and no host is trusted.
func machineRoots() []byte {
	for _, path := range bundlePaths() {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(f, maxBundle))
		_ = f.Close() // it was only read
		if err == nil && len(data) > 0 {
			return data
		}
	}
	return nil
}

// The lines around the gateway's authority in a bundle. A sandbox that is resumed has a new
// gateway, and no longer trusts the old one.
const (
	trustBegin = "# sandpit: the network of this sandbox\n"
	trustEnd   = "# sandpit: end\n"
)

// rootUser is the ID of root inside, which may write everywhere.
const rootUser = "0"

// trustGuest is what a trustInstaller uses of a guest.
type trustGuest interface {
	ReadFile(ctx context.Context, user, path string) (io.ReadCloser, error)
	WriteFile(ctx context.Context, user, path string, from io.Reader, opts sandpit.WriteOptions) error
	Env(ctx context.Context) (map[string]string, error)
	AddEnv(ctx context.Context, env map[string]string) error
}

// trustInstaller has programs inside trust an authority: by the files that systems have for
// that, and by the environment of programs that start later, except for variables that the
// user has set. The sandbox may be hostile: it can only deceive itself.
type trustInstaller struct{ guest trustGuest }

// install installs an authority, as PEM.
func (t trustInstaller) install(ctx context.Context, authority []byte) error {
	if err := t.writeBundles(ctx, authority); err != nil {
		return err
	}
	return t.addEnv(ctx)
}

func (t trustInstaller) writeBundles(ctx context.Context, authority []byte) error {
	block := append(append([]byte(trustBegin), authority...), trustEnd...)
	var all []byte // the first bundle that exists, with the authority
	for _, path := range bundlePaths() {
		old, err := t.readFile(ctx, path)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue
		}
		if err != nil {
			return err
		}
		merged := append(removeTrust(old), block...)
		if all == nil {
			all = merged
		}
		if err := t.writeFile(ctx, path, merged); err != nil {
			return err
		}
	}
	if all == nil {
		all = append(machineRoots(), block...)
	}
	if err := t.writeFile(ctx, trustedPath, all); err != nil {
		return err
	}
	return t.writeFile(ctx, authorityPath, authority)
}

// removeTrust removes the authority of an earlier gateway from a bundle.
func removeTrust(bundle []byte) []byte {
	before, rest, found := bytes.Cut(bundle, []byte(trustBegin))
	if !found {
		if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
			bundle = append(bundle, '\n')
		}
		return bundle
	}
	_, after, _ := bytes.Cut(rest, []byte(trustEnd))
	return append(slices.Clip(before), after...)
}

func (t trustInstaller) readFile(ctx context.Context, path string) ([]byte, error) {
	r, err := t.guest.ReadFile(ctx, rootUser, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxBundle+1))
	if err == nil && len(data) > maxBundle {
		err = sandpit.Errorf(sandpit.Exhausted, "%s has more than %d bytes", path, maxBundle)
	}
	return data, err
}

func (t trustInstaller) writeFile(ctx context.Context, path string, data []byte) error {
	return t.guest.WriteFile(ctx, rootUser, path, bytes.NewReader(data), sandpit.WriteOptions{Mode: 0o644})
}

func (t trustInstaller) addEnv(ctx context.Context) error {
	has, err := t.guest.Env(ctx)
	if err != nil {
		return err
	}
	env := trustEnv()
	maps.DeleteFunc(env, func(name, _ string) bool { _, set := has[name]; return set })
	return t.guest.AddEnv(ctx, env)
}
