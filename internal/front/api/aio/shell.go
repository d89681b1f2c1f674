package aio

import (
	"cmp"
	"crypto/rand"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Statuses of commands.
const (
	running    = "running"
	completed  = "completed"
	hardLimit  = "hard_timeout"
	terminated = "terminated"
)

// consoleRecord is a command as a terminal shows it.
type consoleRecord struct {
	Prompt  string `json:"ps1"`
	Command string `json:"command"`
	Output  string `json:"output"`
}

// commandResult is how a command went.
type commandResult struct {
	Session  string          `json:"session_id"`
	Command  string          `json:"command"`
	Status   string          `json:"status"`
	Output   string          `json:"output"`
	Console  []consoleRecord `json:"console"`
	ExitCode *int            `json:"exit_code"`
}

// maxResults is of how many shells the last result is remembered.
const maxResults = 100

// defaultShell is whose commands name no session.
const defaultShell = "main"

// maxCommand is how long a command may run whose request names no time, in seconds.
const maxCommand = 3600.0

// shellExec runs a command. What takes longer than the request allows is ended, and not left to run on: who wants
// that says async_mode.
func shellExec(c *call) (any, string, error) {
	var in struct {
		ID      string   `json:"id"`
		Dir     string   `json:"exec_dir"`
		Command string   `json:"command"`
		Async   bool     `json:"async_mode"`
		Timeout *float64 `json:"timeout"`
		Hard    *float64 `json:"hard_timeout"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	id := cmp.Or(in.ID, defaultShell)
	exec := fields{"command": in.Command, "session_id": id, "exec_dir": in.Dir, "background": in.Async}
	if in.Hard != nil {
		exec["timeout"] = *in.Hard
	} else if !in.Async {
		exec["timeout"] = cmp.Or(c.server.o.CommandTimeout.Seconds(), maxCommand)
		if in.Timeout != nil {
			exec["timeout"] = *in.Timeout
		}
	}
	var done struct {
		ExitCode int    `json:"exit_code"`
		Output   string `json:"output"`
		TimedOut bool   `json:"timed_out"`
	}
	_, err := c.callTool("shell_exec", exec, &done)
	if err != nil {
		return nil, "", err
	}
	r := commandResult{Session: id, Command: in.Command, Status: running, Console: []consoleRecord{}}
	if in.Async {
		c.session.setLast(id, nil)
		return r, "Command started", nil
	}
	r.Output, r.Console = done.Output, []consoleRecord{{"$ ", in.Command, done.Output}}
	r.Status, r.ExitCode = completed, &done.ExitCode
	if done.TimedOut {
		r.Status, r.ExitCode = hardLimit, nil
	}
	c.session.setLast(id, &r)
	return r, "Command executed", nil
}

// setLast keeps the result of the newest command of a shell; nil: it runs in the background.
func (b *sandboxSession) setLast(id string, r *commandResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLast(id)
	if r == nil {
		return
	}
	if len(b.last) >= maxResults || b.memory.Reserve(r.memorySize()) != nil {
		for other := range b.last {
			b.dropLast(other)
		}
		if b.memory.Reserve(r.memorySize()) != nil {
			return
		}
	}
	b.last[id] = *r
}

// dropLast removes the result of a shell. The lock is held.
func (b *sandboxSession) dropLast(id string) {
	if r, ok := b.last[id]; ok {
		b.memory.Return(r.memorySize())
		delete(b.last, id)
	}
}

// memorySize is how many bytes of memory a result takes.
func (r commandResult) memorySize() int64 { return int64(len(r.Command)+len(r.Output)) + 1<<10 }

func (b *sandboxSession) lastOf(id string) (commandResult, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.last[id]
	return r, ok
}

// job is what is told of a program in the background.
type job struct {
	Running  bool   `json:"running"`
	ExitCode *int   `json:"exit_code"`
	Output   string `json:"output"`
}

func (j job) toStatus() string {
	if j.Running {
		return running
	}
	return completed
}

// shellRequest is a request about a shell.
type shellRequest struct {
	ID      string   `json:"id"`
	Input   string   `json:"input"`
	Enter   bool     `json:"press_enter"`
	Seconds *float64 `json:"seconds"`
	Most    *float64 `json:"max_wait_seconds"`
}

func (c *call) readShellRequest() (in shellRequest, err error) {
	if err = c.readBody(&in); err == nil && in.ID == "" {
		err = sandpit.Errorf(sandpit.Invalid, "id is missing")
	}
	return in, err
}

func shellView(c *call) (any, string, error) {
	in, err := c.readShellRequest()
	if err != nil {
		return nil, "", err
	}
	if last, ok := c.session.lastOf(in.ID); ok {
		return last, "", nil
	}
	var now job
	_, err = c.callTool("shell_view", fields{"session_id": in.ID}, &now)
	return commandResult{Session: in.ID, Status: now.toStatus(), Output: now.Output, Console: []consoleRecord{{"$ ", "", now.Output}}, ExitCode: now.ExitCode}, "", err
}

func shellWait(c *call) (any, string, error) {
	in, err := c.readShellRequest()
	if err != nil {
		return nil, "", err
	}
	if last, ok := c.session.lastOf(in.ID); ok {
		return map[string]string{"status": last.Status}, "", nil
	}
	if in.Seconds == nil {
		in.Seconds = in.Most
	}
	var now job
	_, err = c.callTool("shell_wait", fields{"session_id": in.ID, "seconds": in.Seconds}, &now)
	return map[string]string{"status": now.toStatus()}, "", err
}

func shellWrite(c *call) (any, string, error) {
	in, err := c.readShellRequest()
	if err != nil {
		return nil, "", err
	}
	_, err = c.callTool("shell_write", fields{"session_id": in.ID, "input": &in.Input, "press_enter": in.Enter}, nil)
	return map[string]string{"status": running}, "Input written", err
}

func shellKill(c *call) (any, string, error) {
	in, err := c.readShellRequest()
	if err != nil {
		return nil, "", err
	}
	_, err = c.callTool("shell_kill", fields{"session_id": in.ID}, nil)
	return map[string]any{"status": terminated, "exit_code": nil, "returncode": nil}, "Process terminated", err
}

func shellCreate(c *call) (any, string, error) {
	var in struct {
		ID  string `json:"id"`
		Dir string `json:"exec_dir"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	if in.ID == "" {
		in.ID = "shell-" + rand.Text()[:8]
	}
	command := "pwd"
	if in.Dir != "" {
		command = "cd -- " + quoteWord(in.Dir)
	}
	var done struct {
		ExitCode int    `json:"exit_code"`
		Output   string `json:"output"`
		Cwd      string `json:"cwd"`
	}
	if _, err := c.callTool("shell_exec", fields{"command": command, "session_id": in.ID}, &done); err != nil {
		return nil, "", err
	}
	if done.ExitCode != 0 {
		return nil, "", sandpit.Errorf(sandpit.NotFound, "%s", done.Output)
	}
	return map[string]string{"session_id": in.ID, "working_dir": done.Cwd}, "Session created", nil
}

// quoteWord is a word of a shell.
func quoteWord(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func shellSessions(c *call) (any, string, error) {
	var found struct {
		Shells []struct {
			ID        string    `json:"id"`
			Cwd       string    `json:"cwd"`
			CreatedAt time.Time `json:"created_at"`
			UsedAt    time.Time `json:"last_used"`
		} `json:"shells"`
	}
	_, err := c.callTool("shell_sessions", nil, &found)
	sessions := map[string]any{}
	for _, s := range found.Shells {
		sessions[s.ID] = map[string]any{
			"working_dir": s.Cwd, "created_at": s.CreatedAt, "last_used_at": s.UsedAt, "age_seconds": int(time.Since(s.CreatedAt).Seconds()), "status": "active",
		}
	}
	return map[string]any{"sessions": sessions}, "", err
}
