package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// secretFiles stores the secrets of sandboxes and gives them to guests.
//
// The values of a sandbox's secrets are in one file, and in its guest. The row is written before
// the file, and removed after it, so that no crash leaves an unknown file.
type secretFiles struct {
	core      *core
	instances *instances
	o         *Options
}

// The bounds of secrets.
const (
	maxSecrets     = 64
	maxSecretBytes = 64 << 10 // of one value
	maxSecretsSize = 1 << 20  // of a file
)

var secretPattern = pattern.New(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)

// checkSecrets refuses secrets that cannot be environment variables. No error contains a value.
func checkSecrets(secrets map[string]string) error {
	if len(secrets) > maxSecrets {
		return sandpit.Errorf(sandpit.Invalid, "%d secrets, want at most %d", len(secrets), maxSecrets)
	}
	total := 0
	for name, value := range secrets {
		if !secretPattern().MatchString(name) {
			return sandpit.Errorf(sandpit.Invalid, "secret %.100q: want the name of a variable, of letters, digits and _", name)
		}
		if value == "" || len(value) > maxSecretBytes || strings.Contains(value, "\x00") {
			return sandpit.Errorf(sandpit.Invalid, "secret %s: want a value of 1 to %d bytes without zero bytes", name, maxSecretBytes)
		}
		total += len(value)
	}
	if total > maxSecretsSize/4 { // JSON can be several times as long
		return sandpit.Errorf(sandpit.Invalid, "secrets of %d bytes, want at most %d", total, maxSecretsSize/4)
	}
	return nil
}

// saveSecrets writes the secrets of a sandbox that is being created.
func (sf *secretFiles) saveSecrets(id sandpit.ID, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	if sf.o.SecretsDir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "no directory for secrets is configured")
	}
	data, err := json.Marshal(secrets)
	if err == nil {
		err = os.MkdirAll(sf.o.SecretsDir, 0o700)
	}
	if err == nil {
		err = writeSecrets(filepath.Join(sf.o.SecretsDir, string(id)), data)
	}
	if err != nil {
		return fmt.Errorf("write the secrets: %w", err)
	}
	return nil
}

func writeSecrets(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// removeSecrets removes the file of a deleted sandbox.
func (sf *secretFiles) removeSecrets(row store.Row) error {
	if len(row.Spec.Secrets) == 0 && row.State != sandpit.StateCreating && row.Pool == "" {
		return nil
	}
	if sf.o.SecretsDir == "" {
		return nil
	}
	err := os.Remove(filepath.Join(sf.o.SecretsDir, string(row.ID)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the secrets: %w", err)
	}
	return nil
}

// giveSecrets gives the guest of a sandbox its secrets, which the guest loses when it is stopped or
// suspended. NotFound: the file is missing.
func (sf *secretFiles) giveSecrets(ctx context.Context, i sandpit.Instance, names []string) error {
	if len(names) == 0 {
		return nil
	}
	keeper, ok := sandpit.As[sandpit.Secreter](i.Guest())
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "sandbox %s: its guest does not support secrets", i.ID())
	}
	data, err := os.ReadFile(filepath.Join(sf.o.SecretsDir, string(i.ID())))
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the secrets of sandbox %s are missing", i.ID()),
			"copy its files into a new sandbox with the secrets")
	}
	var secrets map[string]string
	if err == nil {
		err = json.Unmarshal(data, &secrets)
	}
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "read the secrets of sandbox %s: %w", i.ID(), err)
	}
	if found := slices.Sorted(maps.Keys(secrets)); !slices.Equal(found, names) {
		return sandpit.Errorf(sandpit.Internal, "the secrets of sandbox %s are %v, want %v", i.ID(), found, names)
	}
	give := withoutResult(func(ctx context.Context) error { return keeper.SetSecrets(ctx, secrets) })
	_, err = callProvider(ctx, sf.core.loops, sf.core.newCall("give secrets to sandbox "+string(i.ID())), give, nil)
	return err
}

// giveSecretsAgain is giveSecrets for a sandbox that continues.
func (sf *secretFiles) giveSecretsAgain(ctx context.Context, rec *sandboxRecord) error {
	names := rec.currentRow().Spec.Secrets
	if len(names) == 0 {
		return nil
	}
	i, err := sf.instances.ensureAttached(ctx, rec)
	if err != nil {
		return err
	}
	return sf.giveSecrets(ctx, i, names)
}
