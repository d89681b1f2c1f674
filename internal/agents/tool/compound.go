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

// compoundTools are tools that older agents know: one for a whole subject, with an action as its input. Each hands its
// work to the tool for that action, so that both do the same.
func compoundTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "bash", Title: "Run a command in bash", Category: Compound, Hints: run, Timeout: stopTimeout, commandTimeout: bashTimeout,
			Description: "Run a command in the session's shell. What takes longer than two minutes is stopped: sandbox_shell can run it in the background. " +
				"An empty command shows what the newest program in the background has put out, ctrl+c ends it.",
			function: newFunction(bashTool),
		},
		{
			Name: "sandbox_shell", Title: "Run commands and look after them", Category: Compound, Hints: run, Timeout: stopTimeout, commandTimeout: shellTimeout,
			Description: "Run commands in shells: execute_command starts one in the background, or waits for its end if it is to block; " +
				"check_command_output, terminate_command and list_commands deal with those in the background.",
			function: newFunction(sandboxShell), synonyms: map[string]string{"session_id": "session_name"},
		},
		{
			Name: "sandbox_files", Title: "Make and change files", Category: Compound, Hints: Hints{Destructive: true},
			Description: "Make, rewrite, edit, delete, read and list files: create_file makes one that is not there yet, full_file_rewrite replaces one that is, " +
				"str_replace replaces a text that occurs exactly once.",
			function: newFunction(sandboxFiles), synonyms: map[string]string{"path": "file_path", "content": "file_contents"},
		},
		editorTool(),
	}
}

// errMissing is a field that an action needs.
func errMissing(field, action string) error {
	return sandpit.Errorf(sandpit.Invalid, "%s is required for %s", field, action)
}

type bashInput struct {
	Command string `json:"command,omitempty" jsonschema:"the command; empty to see more output, ctrl+c to end the newest program in the background"`
	Restart bool   `json:"restart,omitempty" jsonschema:"give the session a new shell, which remembers nothing" default:"false"`
}

// bashTimeout is how long a command of the tool bash may take.
const bashTimeout = 2 * time.Minute

func bashTool(ctx context.Context, s *Session, in bashInput) (Result, error) {
	if in.Restart {
		sh, err := s.openShell(ctx, mainShell)
		if err == nil {
			err = sh.Restart(ctx)
		}
		if err != nil || strings.TrimSpace(in.Command) == "" {
			return Result{Text: "The shell is new"}, err
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
	Session  string  `json:"session_name,omitempty" jsonschema:"name of the shell for execute_command, default main; else the program, as execute_command has named it"`
	Blocking bool    `json:"blocking,omitempty" jsonschema:"wait for the end of the command" default:"false"`
	Timeout  float64 `json:"timeout,omitempty" jsonschema:"seconds after which a command that blocks is stopped; default 60" range:"0,3600"`
	Kill     bool    `json:"kill_session,omitempty" jsonschema:"end the program once its output was looked at" default:"false"`
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
	Contents    *string `json:"file_contents,omitempty" jsonschema:"what the file shall hold, for create_file and full_file_rewrite"`
	Old         string  `json:"old_str,omitempty" jsonschema:"the text to be replaced, for str_replace"`
	New         *string `json:"new_str,omitempty" jsonschema:"the text in its place; empty removes it"`
	Permissions string  `json:"permissions,omitempty" jsonschema:"such as 644 or 755; default: 644 for a new file, and those that it has for another"`
	Start       *int    `json:"start_line,omitempty" jsonschema:"first line for read_file, counted from 0" range:"0,"`
	End         *int    `json:"end_line,omitempty" jsonschema:"line before which read_file stops, counted from 0" range:"0,"`
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

// writeOrCreate makes a file that is not there yet, or rewrites one that is.
func (s *Session) writeOrCreate(ctx context.Context, in filesInput) (Result, error) {
	o := sandpit.WriteOptions{}
	if in.Permissions != "" {
		mode, err := strconv.ParseUint(in.Permissions, 8, 32)
		if err != nil || mode > 0o777 {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "permissions %.20q: want three octal digits, such as 644", in.Permissions)
		}
		o.Mode = fs.FileMode(mode)
	}
	s.editing.Lock() // so that of two who make a file one is told that it is there
	defer s.editing.Unlock()
	exists, err := s.files.Exists(ctx, in.Path)
	switch create := in.Action == "create_file"; {
	case err != nil:
		return Result{}, err
	case create && exists:
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "%s is there already", in.Path), "full_file_rewrite replaces what a file holds")
	case !create && !exists:
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no file %s", in.Path), "create_file makes it")
	}
	if err := s.files.Write(ctx, in.Path, strings.NewReader(*in.Contents), o); err != nil {
		return Result{}, err
	}
	return Result{
		Text: fmt.Sprintf("%s holds %d bytes now", path.Clean(in.Path), len(*in.Contents)) + s.showPage(ctx, in.Path),
		Data: writeData{File: s.absPath(in.Path), Bytes: len(*in.Contents)},
	}, nil
}
