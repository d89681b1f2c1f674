package toolbox

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	// maxArgument is the maximum number of bytes of a command that is an argument of its shell:
	// Linux's limit for one argument, less what precedes it.
	maxArgument = 128<<10 - 1 - len(mergeOutputs)
	// maxCommand is the maximum number of bytes of a command or a program in source code.
	maxCommand = 8 << 20
	// maxOutput is the maximum number of bytes of output in a response; of longer output the
	// middle is left out.
	maxOutput = 16 << 20
	// outputCost is the memory for each byte of output: in a window, as text, and in the
	// response.
	outputCost = 3
	// maxTimeout is the maximum timeout.
	maxTimeout = 10 * 365 * 24 * time.Hour
)

// registerProcess adds the calls about commands, sessions, terminals and interpreters.
func (s *Server) registerProcess(mux api.Router) {
	s.handle(mux, "POST /process/execute", executeCommand)
	s.handle(mux, "POST /process/code-run", runCode)
	s.registerSessions(mux)
	s.registerTerminals(mux)
	s.registerInterpreter(mux)
}

// executeResponse is the result of a command. Both of its outputs are in Result, in the order of
// arrival.
type executeResponse struct {
	ExitCode int    `json:"exitCode"`
	Result   string `json:"result"`
}

// executeCommand runs a command in a shell, and kills it when the client disconnects.
func executeCommand(ctx context.Context, c *call) error {
	var in struct {
		Command string            `json:"command"`
		Dir     string            `json:"cwd"`
		Envs    map[string]string `json:"envs"`
		Timeout *float64          `json:"timeout"`
	}
	if err := c.readBody(&in); err != nil {
		return err
	}
	if err := checkCommand(in.Command); err != nil {
		return err
	}
	timeout, err := c.server.parseTimeout(in.Timeout)
	if err != nil {
		return err
	}
	dir, err := c.startDir(ctx, in.Dir)
	if err != nil {
		return err
	}
	shell, err := c.shellProgram(ctx)
	if err != nil {
		return err
	}
	cmd := newShellCommand(shell, in.Command)
	cmd.Env, cmd.Dir, cmd.Timeout = in.Envs, dir, timeout
	if cmd.Stdin != nil {
		if err := c.admitText(ctx, []string{shell, "-c", in.Command}, dir); err != nil {
			return err
		}
	}
	done, err := runMerged(ctx, c, cmd)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, done)
}

// newShellCommand returns the command that runs a text in a shell, with an empty input. A text that
// is too long for an argument is sent as the shell's own input.
func newShellCommand(shell, text string) sandpit.Command {
	if len(text) <= maxArgument {
		return sandpit.Command{Args: []string{shell, "-c", mergeOutputs + text}}
	}
	return sandpit.Command{Args: []string{shell, "-c", mergeOutputs + evalInput}, Stdin: strings.NewReader(text)}
}

// admitText has a command decided about that is sent as input: the guest sees only its shell.
func (c *call) admitText(ctx context.Context, args []string, dir string) error {
	to := sandpit.ObserverOf(c.guest)
	if to.Admit == nil {
		return nil
	}
	err := to.Admit(ctx, args, dir)
	if err != nil {
		seen := sandpit.CommandCall(sandpit.RunCommand, args)
		seen.Err = sandpit.NotAdmitted(err)
		to.Called(ctx, seen)
	}
	return err
}

// evalInput runs the text in the input. A command substitution removes the newlines at the end of
// the text, so a period follows them.
const evalInput = `__sandpit=$(cat && echo .) || exit 126
exec </dev/null
eval "unset __sandpit
${__sandpit%.}"`

// mergeOutputs precedes a command whose two outputs are returned together: the order of their
// bytes is then that of the writes.
const mergeOutputs = "exec 2>&1\n"

// checkCommand checks the text of a command.
func checkCommand(text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return sandpit.Errorf(sandpit.Invalid, "command cannot be empty")
	case len(text) > maxCommand:
		return sandpit.Errorf(sandpit.Invalid, "the command has %d bytes, at most %d are allowed", len(text), maxCommand)
	}
	return nil
}

// parseTimeout converts a number of seconds: without one the default, 0 for no limit.
func (s *Server) parseTimeout(seconds *float64) (time.Duration, error) {
	switch {
	case seconds == nil:
		return s.o.CommandTimeout, nil
	case math.IsNaN(*seconds) || *seconds < 0 || *seconds > maxTimeout.Seconds():
		return 0, sandpit.Errorf(sandpit.Invalid, "invalid timeout %v: want 0 to %.0f seconds", *seconds, maxTimeout.Seconds())
	case *seconds == 0:
		return 0, nil
	}
	return max(time.Millisecond, time.Duration(*seconds*float64(time.Second))), nil
}

// runMerged runs a command and returns both of its outputs together.
func runMerged(ctx context.Context, c *call, cmd sandpit.Command) (executeResponse, error) {
	both := workspace.NewWindowOf(ctx, maxOutput, outputCost)
	cmd.Stdout, cmd.Stderr = both, both
	result, err := workspace.Execute(ctx, c.guest, cmd, nil)
	if err != nil {
		if result.TimedOut {
			err = newTimeoutError(cmd.Timeout)
		}
		return executeResponse{}, err
	}
	return executeResponse{result.ExitCode, toText(both.String())}, nil
}

// newTimeoutError returns the error for a command that took too long.
func newTimeoutError(limit time.Duration) error {
	err := sandpit.Errorf(sandpit.Timeout, "the command took longer than %s and was killed", limit)
	return withStatus(err, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
}

// toText returns output as text: bytes that are not UTF-8 become U+FFFD.
func toText(output string) string { return strings.ToValidUTF8(output, "\uFFFD") }
