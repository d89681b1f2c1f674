package tool

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

func shellTools() []Tool {
	session := map[string]string{"id": "session_id", "session_name": "session_id"}
	return []Tool{
		{
			Name: "shell_exec", Title: "Run a shell command", Category: Shell, Hints: Hints{Destructive: true, OpenWorld: true},
			Description: "Run a command in a shell that keeps its directory, variables and functions from one call to the next. " +
				"With background it keeps running after the call; use shell_view, shell_wait, shell_write and shell_kill to control it.",
			Timeout: stopTimeout, commandTimeout: shellTimeout,
			function: newFunction(shellExec), synonyms: map[string]string{"async_mode": "background", "cmd": "command", "id": "session_id", "session_name": "session_id"},
		}, {
			Name: "shell_interactive", Title: "Use an interactive program", Category: Shell, Hints: Hints{Destructive: true, OpenWorld: true},
			Description: "Start a program in a terminal (an editor, a REPL, an interactive installer), send keys, read its screen, resize or close it.",
			function:    newFunction(shellInteractive), synonyms: session,
		}, {
			Name: "shell_view", Title: "Show a program's output", Category: Shell, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "Return the output of a background program, newest last.",
			function:    newFunction(shellView), synonyms: session,
		}, {
			Name: "shell_write", Title: "Send input", Category: Shell, Hints: Hints{Destructive: true},
			Description: "Send input to a background program, followed by Enter by default.",
			function:    newFunction(shellWrite), synonyms: map[string]string{"id": "session_id", "session_name": "session_id", "text": "input"},
		}, {
			Name: "shell_wait", Title: "Wait for a program", Category: Shell, Hints: Hints{ReadOnly: true},
			Description: "Wait until a background program ends, and return its output.",
			function:    newFunction(shellWait), synonyms: session,
		}, {
			Name: "shell_kill", Title: "End a program", Category: Shell, Hints: Hints{Destructive: true, Idempotent: true},
			Description: "End a background program and all processes that it started.",
			function:    newFunction(shellKill), synonyms: session,
		}, {
			Name: "shell_sessions", Title: "List shells and programs", Category: Shell, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "List the shells of this session and their background programs.",
			function:    newFunction(shellSessions),
		},
	}
}

const (
	mainShell = "main"
	// stopTimeout bounds the end of a command after it is stopped.
	stopTimeout = 90 * time.Second
)

type execInput struct {
	Command    string  `json:"command" jsonschema:"the shell command"`
	Timeout    float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is stopped; background commands have no limit by default" range:"0,3600"`
	Background bool    `json:"background,omitempty" jsonschema:"run in the background without waiting for the end" default:"false"`
	Dir        string  `json:"exec_dir,omitempty" jsonschema:"run in this directory without changing the shell's directory"`
	Session    string  `json:"session_id,omitempty" jsonschema:"name of the shell; created if it does not exist" default:"main"`
}

type execData struct {
	Session  string `json:"session_id"`
	ExitCode int    `json:"exit_code"`
	Output   string `json:"output"`
	Cwd      string `json:"cwd,omitempty"`
	// Outcome is completed, interrupted, killed, lost or ended: see docs on terminals.
	Outcome  shell.Outcome `json:"outcome"`
	TimedOut bool          `json:"timed_out,omitempty"`
	Duration float64       `json:"duration_seconds"`
}

// shellTimeout is the default timeout of a command.
const shellTimeout = 60 * time.Second

func shellExec(ctx context.Context, s *Session, in execInput) (Result, error) {
	sh, err := s.openShell(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	command := in.Command
	if in.Dir != "" { // in a subshell, so that the shell keeps its directory
		command = "(cd -- " + quoteWord(s.absPath(in.Dir)) + " && { " + command + "\n})"
	}
	if in.Background {
		return s.startBackground(ctx, sh, in, command)
	}
	seconds := in.Timeout
	if seconds == 0 {
		seconds = commandSeconds(ctx)
	}
	r, err := sh.Run(ctx, shell.RunRequest{Command: command, Timeout: toDuration(seconds), MaxOutput: maxCommandOutput, Output: s.liveOutput(ctx)})
	output := string(r.Stdout)
	if len(r.Late) > 0 {
		output = "(output of earlier background commands:)\n" + string(r.Late) + "\n" + output
	}
	data := execData{in.Session, r.ExitCode, s.secretSet().truncateText(output), r.Cwd, r.Outcome, r.TimedOut, r.Duration.Seconds()}
	if err != nil && !r.TimedOut {
		return Result{Text: output}, err
	}
	text := commandText(r.ExitCode, output)
	if r.TimedOut {
		text = fmt.Sprintf("[FAILED (timeout after %g s; %s)]\n%s", seconds, r.Outcome, output)
	}
	if r.Fresh {
		text += "\n(this ran in a new shell without earlier state, because the previous shell had ended)"
	}
	if r.StateLost {
		text += "\n(the shell has ended; the next command runs in a new shell without earlier state)"
	}
	return Result{Text: text, Data: data, Failed: r.ExitCode != 0 || r.TimedOut}, nil
}

func toDuration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// noProgramText returns the error text for a shell without background programs; "" means any shell.
func noProgramText(name string) string {
	if name == "" {
		return "there is no background program"
	}
	return fmt.Sprintf("session_id %.80q has no background program", name)
}

// quoteWord quotes a word for a shell.
func quoteWord(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// openShell returns the shell with a name. It creates the shell if necessary.
func (s *Session) openShell(ctx context.Context, name string) (*shell.Session, error) {
	if name == "" {
		name = mainShell
	}
	s.opening.Lock() // concurrent calls wait for the new shell
	defer s.opening.Unlock()
	sh, err := s.shells.Get(name)
	if code := sandpit.CodeOf(err); code != sandpit.NotFound && code != sandpit.Gone {
		return sh, err
	}
	return s.shells.Create(ctx, name, shell.Options{Dir: s.o.Dir, User: s.o.User, Env: s.environment()})
}

type jobData struct {
	Session string `json:"session_id"`
	Job     string `json:"job_id"`
	PID     int    `json:"pid"`
	Running bool   `json:"running"`
	// ExitCode is the exit code of a job that has ended.
	ExitCode *int   `json:"exit_code,omitempty"`
	Output   string `json:"output,omitempty"`
}

func (s *Session) startBackground(ctx context.Context, sh *shell.Session, in execInput, command string) (Result, error) {
	job, err := sh.Start(ctx, shell.JobRequest{Command: command, Timeout: toDuration(in.Timeout), Stdin: true})
	if err != nil {
		return Result{}, err
	}
	id := jobName(in.Session, job)
	look := firstAllowed(ctx, fmt.Sprintf("; see its output with shell_view, session_id %q", id),
		fmt.Sprintf("; see its output with sandbox_shell: check_command_output, session_name %q", id))
	return Result{
		Text: fmt.Sprintf("[STARTED]\n%s runs in the background (pid %d)%s", id, job.Info().PID, look),
		Data: jobData{Session: id, Job: job.ID(), PID: job.Info().PID, Running: true},
	}, nil
}

// jobName returns the name of a job for callers: SHELL/JOB.
func jobName(shellName string, job *shell.Job) string {
	if shellName == "" {
		shellName = mainShell
	}
	return shellName + "/" + job.ID()
}

// findJob finds a job by its name, or the newest one of a shell, or of all.
func (s *Session) findJob(ctx context.Context, name string) (*shell.Job, string, error) {
	shellName, id, exact := strings.Cut(name, "/")
	if exact {
		sh, err := s.shells.Get(shellName)
		if err != nil {
			return nil, "", err
		}
		job, err := sh.Job(id)
		return job, name, err
	}
	var newest *shell.Job
	found := ""
	for _, info := range s.shells.List() {
		if name != "" && info.ID != name {
			continue
		}
		sh, err := s.shells.Get(info.ID)
		if err != nil {
			continue // it has just ended
		}
		for _, job := range sh.Jobs() {
			if newest == nil || job.Info().StartedAt.After(newest.Info().StartedAt) {
				newest, found = job, jobName(info.ID, job)
			}
		}
	}
	if newest == nil {
		return nil, "", sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%s", noProgramText(name)),
			firstAllowed(ctx, "start one with shell_exec and background", "start one with execute_command of sandbox_shell"))
	}
	return newest, found, nil
}

type sessionInput struct {
	Session string `json:"session_id,omitempty" jsonschema:"the name that shell_exec returned; default: the newest program"`
}

func shellView(ctx context.Context, s *Session, in sessionInput) (Result, error) {
	job, name, err := s.findJob(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	return s.jobResult(name, job, ""), nil
}

// jobResult returns the output and the state of a job.
func (s *Session) jobResult(name string, job *shell.Job, running string) Result {
	info := job.Info()
	chunk := job.Peek(max(0, info.Output-maxCommandOutput), maxCommandOutput)
	output := s.secretSet().maskCut(string(chunk.Data), chunk.Offset > 0, false)
	data := jobData{Session: name, Job: job.ID(), PID: info.PID, Running: info.Running, Output: s.secretSet().tailText(output)}
	if info.Running {
		if running == "" {
			running = "still running"
		}
		if strings.TrimSpace(output) == "" {
			output = noOutput
		}
		return Result{Text: "[RUNNING] " + running + "\n" + output, Data: data}
	}
	data.ExitCode = &info.ExitCode
	text := commandText(info.ExitCode, output)
	if info.Error != "" {
		text += "\n(" + info.Error + ")"
	}
	return Result{Text: text, Data: data, Failed: info.ExitCode != 0}
}

type inputInput struct {
	Input   string `json:"input" jsonschema:"the input to send"`
	Enter   *bool  `json:"press_enter,omitempty" jsonschema:"send Enter after it" default:"true"`
	Session string `json:"session_id,omitempty" jsonschema:"the name that shell_exec returned; default: the newest program"`
}

func shellWrite(ctx context.Context, s *Session, in inputInput) (Result, error) {
	job, _, err := s.findJob(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	if err := job.Write(ctx, toKeys(in.Input, in.Enter == nil || *in.Enter, job)); err != nil {
		return Result{}, err
	}
	return Result{Text: "Input sent"}, nil
}

func toKeys(input string, enter bool, job *shell.Job) []byte {
	switch {
	case !enter:
	case job.Info().Terminal:
		input += "\r"
	default:
		input += "\n"
	}
	return []byte(input)
}

type waitInput struct {
	Seconds float64 `json:"seconds,omitempty" jsonschema:"how long to wait" default:"30" range:"0,3600"`
	Session string  `json:"session_id,omitempty" jsonschema:"the name that shell_exec returned; default: the newest program"`
}

func shellWait(ctx context.Context, s *Session, in waitInput) (Result, error) {
	job, name, err := s.findJob(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, toDuration(in.Seconds))
	defer cancel()
	// Info has the exit status, and the end of the waiting time is not an error.
	if _, _ = job.Wait(waiting); ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	return s.jobResult(name, job, fmt.Sprintf("Still running after %gs", in.Seconds)), nil
}

func shellKill(ctx context.Context, s *Session, in sessionInput) (Result, error) {
	job, name, err := s.findJob(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	if err := job.Kill(ctx); err != nil {
		return Result{}, err
	}
	return Result{Text: "Process terminated", Data: jobData{Session: name, Job: job.ID(), PID: job.Info().PID}}, nil
}

type nothing struct{}

type shellsData struct {
	Shells []shell.Info `json:"shells"`
	Jobs   []jobData    `json:"jobs"`
}

func shellSessions(_ context.Context, s *Session, _ nothing) (Result, error) {
	data := shellsData{Shells: append([]shell.Info{}, s.shells.List()...), Jobs: []jobData{}}
	var b strings.Builder
	for _, info := range data.Shells {
		fmt.Fprintf(&b, "%s  %s in %s, %d commands so far\n", info.ID, info.Shell, info.Cwd, info.Runs)
		sh, err := s.shells.Get(info.ID)
		if err != nil {
			continue // it has just ended
		}
		for _, job := range sh.Jobs() {
			about, state := job.Info(), "running"
			d := jobData{Session: jobName(info.ID, job), Job: job.ID(), PID: about.PID, Running: about.Running}
			if !about.Running {
				state, d.ExitCode = fmt.Sprintf("ended with exit code %d", about.ExitCode), &about.ExitCode
			}
			data.Jobs = append(data.Jobs, d)
			fmt.Fprintf(&b, "%s  %s: %.200s\n", d.Session, state, about.Command)
		}
	}
	if b.Len() == 0 {
		b.WriteString("No shells yet")
	}
	return Result{Text: b.String(), Data: data}, nil
}

type interactiveInput struct {
	Action  string  `json:"action" jsonschema:"what to do" enum:"start,send,read,resize,close"`
	Command string  `json:"command,omitempty" jsonschema:"the program, for start; default: a shell"`
	Input   string  `json:"input,omitempty" jsonschema:"keys, for send: \\u0003 is Ctrl-C, \\u001b is Escape"`
	Enter   *bool   `json:"press_enter,omitempty" jsonschema:"send Enter after input" default:"true"`
	Wait    float64 `json:"wait,omitempty" jsonschema:"seconds to wait for output" default:"1" range:"0,60"`
	Cols    uint16  `json:"cols,omitempty" jsonschema:"width of the terminal" default:"80" range:"1,1000"`
	Rows    uint16  `json:"rows,omitempty" jsonschema:"height of the terminal" default:"24" range:"1,1000"`
	Session string  `json:"session_id,omitempty" jsonschema:"the name that start returned; default: the newest program"`
}

func shellInteractive(ctx context.Context, s *Session, in interactiveInput) (Result, error) {
	size := sandpit.TerminalSize{Cols: in.Cols, Rows: in.Rows}
	if in.Action == "start" {
		return s.startInteractive(ctx, in, size)
	}
	job, name, err := s.findJob(ctx, in.Session)
	if err != nil {
		return Result{}, err
	}
	from := job.Info().Output
	switch in.Action {
	case "send":
		if err := job.Write(ctx, toKeys(in.Input, in.Enter == nil || *in.Enter, job)); err != nil {
			return Result{}, err
		}
		return s.readScreen(ctx, name, job, from, in.Wait)
	case "resize":
		return Result{Text: fmt.Sprintf("The terminal has %d columns and %d rows", in.Cols, in.Rows)}, job.Resize(ctx, size)
	case "close":
		return Result{Text: "Closed"}, job.Kill(ctx)
	}
	return s.readScreen(ctx, name, job, max(0, from-maxText), in.Wait)
}

func (s *Session) startInteractive(ctx context.Context, in interactiveInput, size sandpit.TerminalSize) (Result, error) {
	name, _, _ := strings.Cut(in.Session, "/")
	sh, err := s.openShell(ctx, name)
	if err != nil {
		return Result{}, err
	}
	job, err := sh.Start(ctx, shell.JobRequest{Command: in.Command, Terminal: &size})
	if err != nil {
		return Result{}, err
	}
	return s.readScreen(ctx, jobName(name, job), job, 0, in.Wait)
}

// settleTime is how long a program must be silent before its output counts as complete.
const settleTime = 200 * time.Millisecond

// readScreen waits for the output of a program since an offset, up to a number of seconds, and returns
// it.
func (s *Session) readScreen(ctx context.Context, name string, job *shell.Job, from int64, seconds float64) (Result, error) {
	until := time.Now().Add(toDuration(seconds))
	for offset := from; time.Now().Before(until); {
		limit := time.Until(until)
		if offset > from { // it has begun to answer
			limit = min(limit, settleTime)
		}
		waiting, cancel := context.WithTimeout(ctx, limit)
		chunk, err := job.Output(waiting, offset, maxText)
		cancel()
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if err != nil || chunk.Ended {
			break
		}
		offset = chunk.Next
	}
	info := job.Info()
	chunk := job.Peek(max(from, info.Output-maxText), maxText)
	output := s.secretSet().maskCut(string(chunk.Data), chunk.Offset > 0, info.Running)
	data := jobData{Session: name, Job: job.ID(), PID: info.PID, Running: info.Running, Output: s.secretSet().tailText(output)}
	state := "running"
	if !info.Running {
		data.ExitCode, state = &info.ExitCode, fmt.Sprintf("ended with exit code %d", info.ExitCode)
	}
	return Result{Text: fmt.Sprintf("[%s: %s]\n%s", name, state, output), Data: data}, nil
}
