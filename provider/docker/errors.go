package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// maxMessage bounds what of an engine's message is shown, in bytes.
const maxMessage = 2 << 10

// engineError gives what the engine's client says a code.
func (p *Provider) engineError(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*sandpit.Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	if p.calls.isOver() {
		return errClosed
	}
	code := sandpit.Internal
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unavailable, "%s: the docker engine at %s does not answer", doing, p.host()),
			"see that it runs and that this user may use it: docker version")
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
	return sandpit.Errorf(code, "%s: %s", doing, clip(err.Error()))
}

func clip(text string) string { return text[:min(len(text), maxMessage)] }

func (p *Provider) host() string { return p.api.DaemonHost() }
