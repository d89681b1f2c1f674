package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// hostKeyFile has the key, in OpenSSH's form.
const hostKeyFile = "host_ed25519"

// HostKey returns the host key of the server. It is created once, in a file of mode 0600 in
// dir, which is created if it is missing.
//
// Invalid: the file has no valid key. PermissionDenied: other users may read it. Other errors
// are those of the file system.
func HostKey(dir string) (ssh.Signer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "make the directory of the SSH host key: %w", err)
	}
	name := filepath.Join(dir, hostKeyFile)
	text, err := readSecret(name)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = makeHostKey(name)
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "open the SSH host key: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the SSH host key %s cannot be read", name),
			"remove the file to have another one made; clients will ask whether they may trust it")
	}
	return key, nil
}

func readSecret(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "%s is open to other users (mode %04o)", name, mode), "chmod 600 "+name)
	}
	return os.ReadFile(name)
}

func makeHostKey(name string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "sandpit")
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	return text, atomicfile.Write(name, 0o600, text)
}
