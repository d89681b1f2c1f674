package daemon

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

const (
	stepKeyFile  = "templates.key"
	stepKeyBytes = 32
)

// loadSecretsKey returns the key of the digests by which builds recognize values of secrets,
// and creates it if it is missing. If it is lost, only steps with secrets run again.
func loadSecretsKey(cfg config.Config) ([]byte, error) {
	path := filepath.Join(cfg.StateDir, stepKeyFile)
	for range 2 {
		key, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, sandpit.Errorf(sandpit.CodeOf(err), "read the key of build secrets: %w", err)
		case len(key) != stepKeyBytes:
			return nil, sandpit.WithHint(
				sandpit.Errorf(sandpit.Internal, "the key of build secrets, %s, is damaged: %d bytes, want %d", path, len(key), stepKeyBytes),
				"remove the file; the server then creates a new key")
		default:
			return key, nil
		}
		if err := makeSecretsKey(path); err != nil {
			return nil, sandpit.Errorf(sandpit.CodeOf(err), "create a key for build secrets: %w", err)
		}
	}
	return nil, sandpit.Errorf(sandpit.Unavailable, "the key of build secrets, %s, keeps being removed", path)
}

// makeSecretsKey writes a key, all of it or nothing, unless another process comes first.
func makeSecretsKey(path string) error {
	key := make([]byte, stepKeyBytes)
	_, _ = rand.Read(key) // never fails: crypto/rand ends the program instead
	err := atomicfile.Create(path, 0o600, key)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
