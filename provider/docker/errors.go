package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// maxMessage bounds the part of an engine's message that is shown, in bytes.
const maxMessage = 2 << 10

// wrapError adds the operation and a code to an error of the engine's client.
func (e *engine) wrapError(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*sandpit.Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	if e.calls.isOver() {
		return errClosed
	}
	code := sandpit.Internal
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, context.DeadlineExceeded), isBroken(err):
		return e.unreachableError(doing, err)
	case cerrdefs.IsNotFound(err):
		code = sandpit.NotFound
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
		code = sandpit.Conflict
	case cerrdefs.IsInvalidArgument(err):
		code = sandpit.Invalid
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		code = sandpit.PermissionDenied
	case cerrdefs.IsUnavailable(err):
		code = sandpit.Unavailable
	case cerrdefs.IsNotImplemented(err):
		code = sandpit.Unsupported
	case cerrdefs.IsResourceExhausted(err):
		code = sandpit.Exhausted
	}
	return sandpit.Errorf(code, "%s: %s", doing, shortenText(err.Error()))
}

// isBroken reports whether a connection to an engine failed or broke.
func isBroken(err error) bool {
	for _, one := range []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, unix.ENOENT,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// unreachableError explains why the engine cannot be reached. The client's errors have no types for
// it, so it checks the socket.
func (e *engine) unreachableError(doing string, err error) error {
	host := e.address()
	why, hint := "does not answer", "check that it runs: docker version"
	if path, ok := strings.CutPrefix(e.o.Endpoint.urlOf(), "unix://"); ok && !errors.Is(err, context.DeadlineExceeded) {
		why, hint = socketTrouble(path)
	} else if text := err.Error(); !ok && strings.Contains(text, "TLS") || strings.Contains(text, "tls:") || strings.Contains(text, "x509:") {
		why, hint = "rejects the connection: "+shortenText(text), "check docker.cert_path, or DOCKER_CERT_PATH and DOCKER_TLS_VERIFY"
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s: the docker engine at %s %s", doing, host, why), hint)
}

// socketTrouble explains why no engine answers at a socket.
func socketTrouble(path string) (why, hint string) {
	const start = "start it: systemctl start docker; or name another by DOCKER_HOST, DOCKER_CONTEXT or docker.host"
	err := unix.Access(path, unix.R_OK|unix.W_OK)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "cannot be reached: no such socket", start
	case errors.Is(err, os.ErrPermission):
		return "cannot be reached: permission denied",
			"become a member of its group and log in again: sudo usermod -aG docker $USER (members have the rights of root); or use Docker without root"
	default:
		return "does not answer", start
	}
}

func shortenText(text string) string { return textlen.Cut(text, maxMessage) }

func (e *engine) address() string { return e.o.Endpoint.String() }
