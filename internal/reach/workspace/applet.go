package workspace

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

// CallApplet runs an applet of the guest program as a command of w, with env added to its
// environment, and decodes its response.
//
// Exhausted: the response is larger than Options.MaxOutput. Internal: it is not one of an
// applet. Also the applet's own errors and those of Run.
func CallApplet[Answer any](ctx context.Context, w *Workspace, name string, request any, env map[string]string) (Answer, error) {
	var answer struct {
		Error *applet.Failure `json:"error"`
		Value Answer          `json:"value"`
	}
	input, err := json.Marshal(request)
	if err != nil {
		return answer.Value, err
	}
	result, err := w.Run(ctx, sandpit.Command{Args: []string{sandpit.GuestProgram, name}, Stdin: bytes.NewReader(input), Env: env})
	if err != nil {
		return answer.Value, err
	}
	if result.Truncated {
		return answer.Value, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the response exceeds the memory limit"), "request less at a time")
	}
	if err := json.Unmarshal([]byte(result.Stdout), &answer); err != nil {
		return answer.Value, sandpit.Errorf(sandpit.Internal, "the guest's applet exited with status %d without a valid response: %.400s", result.ExitCode, result.Stderr)
	}
	if answer.Error != nil {
		return answer.Value, sandpit.Errorf(allowedCode(answer.Error.Code), "%s", answer.Error.Message)
	}
	return answer.Value, nil
}

// allowedCode returns the code of a failure that a sandbox reports, or Internal for codes that a
// sandbox must not report, because they concern credentials or the sandbox itself.
func allowedCode(code sandpit.Code) sandpit.Code {
	switch code {
	case sandpit.Invalid, sandpit.PermissionDenied, sandpit.NotFound, sandpit.AlreadyExists, sandpit.Conflict, sandpit.Exhausted,
		sandpit.Unsupported, sandpit.Unavailable, sandpit.Timeout:
		return code
	default:
		return sandpit.Internal
	}
}
