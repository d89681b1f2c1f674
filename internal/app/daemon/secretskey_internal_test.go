package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestSecretsKey(t *testing.T) {
	t.Parallel()
	cfg := config.Config{StateDir: t.TempDir()}
	keys := make([][]byte, 8)
	var group sync.WaitGroup
	for i := range keys {
		group.Go(func() {
			key, err := loadSecretsKey(cfg)
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	group.Wait()
	for _, key := range keys {
		if len(key) != stepKeyBytes || !bytes.Equal(key, keys[0]) {
			t.Fatalf("keys %x and %x of one directory", keys[0], key)
		}
	}
	entries, err := os.ReadDir(cfg.StateDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v (%v)", entries, err)
	}
	path := filepath.Join(cfg.StateDir, stepKeyFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v (%v)", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadSecretsKey(cfg); sandpit.CodeOf(err) != sandpit.Internal || sandpit.HintOf(err) == "" {
		t.Errorf("a damaged key: %v", err)
	}
}
