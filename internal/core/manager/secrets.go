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
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// secretFiles stores the secrets of sandboxes and gives them to guests.
type secretFiles struct {
	core      *core
	instances *instances
	o         *Options
}

// The values of a sandbox's secrets are in a file of their own, and in its guest. The row
// is written before the file, and removed after it: so no crash leaves one that nobody
// knows.

// The bounds of secrets.
const (
	maxSecrets     = 64
	maxSecretBytes = 64 << 10 // of one value
	maxSecretsSize = 1 << 20  // of a file
)

var secretPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)

// checkSecrets refuses what cannot be environment. No error tells a value.
func checkSecrets(secrets map[string]string) error {
	if len(secrets) > maxSecrets {
		return sandpit.Errorf(sandpit.Invalid, "%d secrets, want at most %d", len(secrets), maxSecrets)
	}
	total := 0
	for name, value := range secrets {
		if !secretPattern.MatchString(name) {
			return sandpit.Errorf(sandpit.Invalid, "secret %.100q: want the name of a variable, of letters, digits and _", name)
		}
		if value == "" || len(value) > maxSecretBytes || strings.Contains(value, "\x00") {
			return sandpit.Errorf(sandpit.Invalid, "secret %s: want a value of 1 to %d bytes, none of them zero", name, maxSecretBytes)
		}
		total += len(value)
	}
	if total > maxSecretsSize/4 { // as JSON it may be several times as long
		return sandpit.Errorf(sandpit.Invalid, "secrets of %d bytes, want at most %d", total, maxSecretsSize/4)
	}
	return nil
}

// saveSecrets writes down what a sandbox that is being made is to be given.
func (sf *secretFiles) saveSecrets(id sandpit.ID, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	if sf.o.SecretsDir == "" {
		return sandpit.Errorf(sandpit.Unsupported, "there is no place for secrets")
	}
	data, err := json.Marshal(secrets)
	if err == nil {
		err = os.MkdirAll(sf.o.SecretsDir, 0o700)
	}
	if err == nil {
		err = writeSecrets(filepath.Join(sf.o.SecretsDir, string(id)), data)
	}
	if err != nil {
		return fmt.Errorf("keep the secrets: %w", err)
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

// removeSecrets removes what keepSecrets has written of a sandbox that is gone.
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

// giveSecrets gives the guest of a sandbox its secrets, which it has lost whenever it was
// stopped, or its memory was on disk. NotFound: they are not there any more.
func (sf *secretFiles) giveSecrets(ctx context.Context, i sandpit.Instance, names []string) error {
	if len(names) == 0 {
		return nil
	}
	keeper, ok := sandpit.As[sandpit.Secreter](i.Guest())
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "sandbox %s: its guest takes no secrets", i.ID())
	}
	data, err := os.ReadFile(filepath.Join(sf.o.SecretsDir, string(i.ID())))
	if errors.Is(err, fs.ErrNotExist) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the secrets of sandbox %s are not there any more", i.ID()),
			"copy its files into a new one that is given them")
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

// giveSecretsAgain is giveKept for a sandbox that goes on.
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
