package npm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// askTimeout bounds the time for asking npm for its registry.
const askTimeout = 30 * time.Second

const hintRegistry = `set one in the configuration, mirrors = { npm = ["HOST"] } in [image], or install npm: ` +
	`sandpit uses the registry that "npm config get registry" prints`

// Configured returns the URL of the registry in npm's configuration on this machine.
//
// Unavailable: npm is not installed or fails. Invalid: the registry is not a valid URL.
func Configured(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ask := exec.CommandContext(ctx, "npm", "config", "get", "registry")
	ask.Dir = "/" // ignore the settings of a project
	ask.WaitDelay = time.Second
	out, err := ask.Output()
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("ask npm for its registry: %w", ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "no registry for npm packages is configured, and npm is not installed"), hintRegistry)
	case err != nil:
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "ask npm for its registry: %w", err), hintRegistry)
	}
	address := string(bytes.TrimSpace(out))
	u, err := url.Parse(address) // errors do not quote it because it may contain a password
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "npm's registry is not an https or http URL without a password"), hintRegistry)
	}
	return strings.TrimRight(address, "/"), nil
}
