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

// askTimeout is how long npm may take to tell its registry.
const askTimeout = 30 * time.Second

const hintRegistry = `name one in the configuration, mirrors = { npm = ["HOST"] } of [image], or install npm: ` +
	`what "npm config get registry" prints is asked`

// Configured returns the URL of the registry that npm asks on this machine, where it is
// installed.
//
// Unavailable: it is not, or does not tell. Invalid: what it tells is no address of a registry.
func Configured(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ask := exec.CommandContext(ctx, "npm", "config", "get", "registry")
	ask.Dir = "/" // a project's own settings are not this machine's
	ask.WaitDelay = time.Second
	out, err := ask.Output()
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("ask npm for its registry: %w", ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "no registry for packages of npm is configured, and npm is not installed here"), hintRegistry)
	case err != nil:
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "npm does not tell its registry: %w", err), hintRegistry)
	}
	address := string(bytes.TrimSpace(out))
	u, err := url.Parse(address) // it may have a password, so no error quotes it
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the registry that npm names is not an https or http URL without a password"), hintRegistry)
	}
	return strings.TrimRight(address, "/"), nil
}
