package tool

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// compoundTools returns tools for older agents: one for each subject, with an action as input. Each
// calls the tool for that action, so that both behave the same.
func compoundTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "bash", Title: "Run a command in bash", Category: Compound, Hints: run, Timeout: stopTimeout, commandTimeout: bashTimeout,
			Description: "Run a command in the session's shell. It is stopped after two minutes; use sandbox_shell to run longer commands in the background. " +
				"An empty command shows the output of the newest background program; ctrl+c ends it.",
			function: newFunction(bashTool),
		},
		{
			Name: "sandbox_shell", Title: "Run and manage commands", Category: Compound, Hints: run, Timeout: stopTimeout, commandTimeout: shellTimeout,
			Description: "Run commands in shells: execute_command starts a command in the background, or waits for its end if blocking is true; " +
				"check_command_output, terminate_command and list_commands manage background commands.",
			function: newFunction(sandboxShell), synonyms: map[string]string{"session_id": "session_name"},
		},
		{
			Name: "sandbox_files", Title: "Create and change files", Category: Compound, Hints: Hints{Destructive: true},
			Description: "Create, rewrite, edit, delete, read and list files: create_file creates a new file, full_file_rewrite overwrites an existing one, " +
				"str_replace replaces a text that occurs exactly once.",
			function: newFunction(sandboxFiles), synonyms: map[string]string{"path": "file_path", "content": "file_contents"},
		},
		editorTool(),
	}
}

// errMissing returns the error for a missing field that an action requires.
func errMissing(field, action string) error {
	return sandpit.Errorf(sandpit.Invalid, "%s is required for %s", field, action)
}

type bashInput struct {
	Command string `json:"command,omitempty" jsonschema:"the command; empty to see more output, ctrl+c to end the newest background program"`
	Restart bool   `json:"restart,omitempty" jsonschema:"replace the shell by a new one without its state" default:"false"`
}

// bashTimeout bounds a command of the tool bash.
const bashTimeout = 2 * time.Minute

func bashTool(ctx context.Context, s *Session, in bashInput) (Result, error) {
	if in.Restart {
		sh, err := s.openShell(ctx, mainShell)
		if err == nil {
			err = sh.Restart(ctx)
		}
		if err != nil || strings.TrimSpace(in.Command) == "" {
			return Result{Text: "The shell was restarted"}, err
		}
	}
	switch strings.TrimSpace(in.Command) {
	case "":
		return shellView(ctx, s, sessionInput{})
	case "ctrl+c":
		return shellKill(ctx, s, sessionInput{})
	}
	return shellExec(ctx, s, execInput{Command: in.Command, Session: mainShell})
}

type shellInput struct {
	Action   string  `json:"action" jsonschema:"what to do" enum:"execute_command,check_command_output,terminate_command,list_commands"`
	Command  string  `json:"command,omitempty" jsonschema:"the command, for execute_command"`
	Folder   string  `json:"folder,omitempty" jsonschema:"directory for execute_command; default: the shell's"`
	Session  string  `json:"session_name,omitempty" jsonschema:"name of the shell for execute_command, default main; for other actions the name that execute_command returned"`
	Blocking bool    `json:"blocking,omitempty" jsonschema:"wait for the end of the command" default:"false"`
	Timeout  float64 `json:"timeout,omitempty" jsonschema:"seconds after which a blocking command is stopped; default 60" range:"0,3600"`
	Kill     bool    `json:"kill_session,omitempty" jsonschema:"end the program after returning its output" default:"false"`
}

func sandboxShell(ctx context.Context, s *Session, in shellInput) (Result, error) {
	if in.Action == "list_commands" {
		return shellSessions(ctx, s, nothing{})
	}
	if in.Action == "execute_command" {
		if strings.TrimSpace(in.Command) == "" {
			return Result{}, errMissing("command", in.Action)
		}
		exec := execInput{Command: in.Command, Background: !in.Blocking, Dir: in.Folder, Session: in.Session}
		if in.Blocking {
			exec.Timeout = in.Timeout
		}
		if exec.Session == "" {
			exec.Session = mainShell
		}
		return shellExec(ctx, s, exec)
	}
	if in.Session == "" {
		return Result{}, errMissing("session_name", in.Action)
	}
	if in.Action == "terminate_command" {
		return shellKill(ctx, s, sessionInput{in.Session})
	}
	result, err := shellView(ctx, s, sessionInput{in.Session})
	if err != nil || !in.Kill {
		return result, err
	}
	killed, err := shellKill(ctx, s, sessionInput{in.Session})
	result.Text += "\n(" + killed.Text + ")"
	return result, err
}

type filesInput struct {
	Action      string  `json:"action" jsonschema:"what to do" enum:"create_file,str_replace,full_file_rewrite,delete_file,read_file,list_files"`
	Path        string  `json:"file_path,omitempty" jsonschema:"path of the file, or of the directory to list"`
	Contents    *string `json:"file_contents,omitempty" jsonschema:"new contents of the file, for create_file and full_file_rewrite"`
	Old         string  `json:"old_str,omitempty" jsonschema:"text to replace, for str_replace"`
	New         *string `json:"new_str,omitempty" jsonschema:"replacement text; empty removes old_str"`
	Permissions string  `json:"permissions,omitempty" jsonschema:"octal mode such as 644 or 755; default: 644 for a new file, unchanged for an existing one"`
	Start       *int    `json:"start_line,omitempty" jsonschema:"first line for read_file, starting at 0" range:"0,"`
	End         *int    `json:"end_line,omitempty" jsonschema:"end line for read_file, exclusive, starting at 0" range:"0,"`
}

func sandboxFiles(ctx context.Context, s *Session, in filesInput) (Result, error) {
	if in.Action == "list_files" {
		if in.Path == "" {
			in.Path = "."
		}
		return listFiles(ctx, s, listInput{Path: in.Path, Depth: 1, Sort: "name"})
	}
	if in.Path == "" {
		return Result{}, errMissing("file_path", in.Action)
	}
	switch in.Action {
	case "read_file":
		return readFile(ctx, s, readInput{File: in.Path, Start: in.Start, End: in.End})
	case "str_replace":
		if in.Old == "" || in.New == nil {
			return Result{}, errMissing("old_str and new_str", in.Action)
		}
		return editFile(ctx, s, editInput{File: in.Path, Old: in.Old, New: *in.New})
	case "delete_file":
		return deleteFile(ctx, s, deleteInput{Path: in.Path})
	}
	if in.Contents == nil {
		return Result{}, errMissing("file_contents", in.Action)
	}
	return s.writeOrCreate(ctx, in)
}

// writeOrCreate creates a new file, or rewrites an existing one, depending on the action.
func (s *Session) writeOrCreate(ctx context.Context, in filesInput) (Result, error) {
	o := sandpit.WriteOptions{}
	if in.Permissions != "" {
		mode, err := strconv.ParseUint(in.Permissions, 8, 32)
		if err != nil || mode > 0o777 {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "permissions %.20q: want three octal digits, such as 644", in.Permissions)
		}
		o.Mode = fs.FileMode(mode)
	}
	s.editing.Lock() // so that only one of two concurrent creations succeeds
	defer s.editing.Unlock()
	exists, err := s.files.Exists(ctx, in.Path)
	switch create := in.Action == "create_file"; {
	case err != nil:
		return Result{}, err
	case create && exists:
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "%s exists already", in.Path), "use full_file_rewrite to replace its contents")
	case !create && !exists:
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "file %s does not exist", in.Path), "use create_file to create it")
	}
	if err := s.files.Write(ctx, in.Path, strings.NewReader(*in.Contents), o); err != nil {
		return Result{}, err
	}
	page, note := s.showPage(ctx, in.Path)
	return Result{
		Text: fmt.Sprintf("%s now has %d bytes", path.Clean(in.Path), len(*in.Contents)) + note,
		Data: writeData{File: s.absPath(in.Path), Bytes: len(*in.Contents), Page: page},
	}, nil
}
