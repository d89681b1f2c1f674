package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// Where a sandbox finds whom to trust: the authority of its gateway alone, and with
// all others.
const (
	authorityPath = "/etc/sandpit/authority.pem"
	bundlePath    = "/etc/sandpit/trusted.pem"
)

// bundles are where systems keep the authorities that they trust, all in one file.
func bundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora
		"/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem", // SUSE
		"/etc/ssl/cert.pem",
	}
}

// trustEnv are the variables by which programs are told whom to trust that bring their
// own authorities, or look in other places.
func trustEnv() map[string]string {
	env := map[string]string{"NODE_EXTRA_CA_CERTS": authorityPath, "DENO_CERT": authorityPath}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO",
	} {
		env[name] = bundlePath
	}
	return env
}

// maxBundle bounds what is read of a bundle, inside or outside, in bytes.
const maxBundle = 8 << 20

// machineRoots are the authorities that the machine trusts, none if it keeps them
// nowhere that is known: then no host is believed.
func machineRoots() []byte {
	for _, path := range bundles() {
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

// The lines around what is ours in a bundle. A sandbox that was saved and goes on has a
// new gateway, and trusts the old one no longer.
const (
	trustBegin = "# sandpit: the network of this sandbox\n"
	trustEnd   = "# sandpit: end\n"
)

// trustGateway has programs inside trust the authority of the gateway: by the files
// that systems have for that, and by the environment of programs started from now on,
// as far as the user has not set it. What is inside may be hostile: it can only deceive
// itself.
func (i *Instance) trustGateway(ctx context.Context) error {
	rep, err := i.callGateway(ctx, request{Op: opAuthority, ID: i.id})
	if err == nil && len(rep.Authority) == 0 {
		err = sandpit.Errorf(sandpit.Internal, "the gateway has no authority")
	}
	if err == nil {
		err = i.spreadTrust(ctx, rep.Authority)
	}
	if err == nil {
		err = i.addTrustEnv(ctx)
	}
	if err != nil {
		return fmt.Errorf("have the sandbox trust its gateway: %w", err)
	}
	return nil
}

func (i *Instance) spreadTrust(ctx context.Context, authority []byte) error {
	block := append(append([]byte(trustBegin), authority...), trustEnd...)
	var all []byte // the first bundle that is there
	for _, path := range bundles() {
		old, err := i.readInside(ctx, path)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue
		}
		if err != nil {
			return err
		}
		merged := append(withoutTrust(old), block...)
		if all == nil {
			all = merged
		}
		if err := i.writeInside(ctx, path, merged); err != nil {
			return err
		}
	}
	if all == nil {
		all = append(machineRoots(), block...)
	}
	if err := i.writeInside(ctx, bundlePath, all); err != nil {
		return err
	}
	return i.writeInside(ctx, authorityPath, authority)
}

// withoutTrust takes out what an earlier gateway put in.
func withoutTrust(bundle []byte) []byte {
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

// insideRoot is who may write everywhere inside, whatever it is called there.
const insideRoot = "0"

func (i *Instance) readInside(ctx context.Context, path string) ([]byte, error) {
	r, err := i.guest.ReadFile(ctx, insideRoot, path)
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

func (i *Instance) writeInside(ctx context.Context, path string, data []byte) error {
	return i.guest.WriteFile(ctx, insideRoot, path, bytes.NewReader(data), sandpit.WriteOptions{Mode: 0o644})
}

func (i *Instance) addTrustEnv(ctx context.Context) error {
	has, err := i.guest.Env(ctx)
	if err != nil {
		return err
	}
	env := trustEnv()
	maps.DeleteFunc(env, func(name, _ string) bool { _, set := has[name]; return set })
	return i.guest.AddEnv(ctx, env)
}
