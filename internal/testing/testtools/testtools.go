// Package testtools contains a call for each agent tool that can be the first call of a session, and
// images in which tests make those calls.
package testtools

import "github.com/sandpit-dev/sandpit"

// Call is a call of a tool in a new sandbox.
type Call struct {
	Tool  string
	Input map[string]any
	// Text is part of the result. Dir stands for the working directory.
	Text string
	// Codes are the acceptable error codes, for tools whose requirements are missing. None: the
	// call succeeds.
	Codes []sandpit.Code
	// Needs is the program whose absence the call reports. Default: none.
	Needs string
}

// Browser is the value of Call.Needs for calls that start a browser.
const Browser = "chromium"

// Dir stands for the working directory in Call.Text.
const Dir = "{dir}"

type input = map[string]any

func codes(list ...sandpit.Code) []sandpit.Code { return list }

// Calls returns a first call for every tool.
func Calls() []Call {
	list := plainCalls()
	for _, c := range browserCalls() {
		c.Needs = Browser
		list = append(list, c)
	}
	return list
}

func plainCalls() []Call {
	missing := codes(sandpit.NotFound)
	where := "import os; print(os.getcwd())"
	return []Call{
		{Tool: "file_read", Input: input{"file": "/etc/passwd"}, Text: "root"},
		{Tool: "file_write", Input: input{"file": "a.txt", "content": "x"}, Text: "Successfully wrote 1 bytes"},
		{Tool: "file_edit", Input: input{"file": "none.txt", "old_str": "a", "new_str": "b"}, Codes: missing},
		{Tool: "file_delete", Input: input{"path": "none.txt"}, Codes: missing},
		{Tool: "file_list"},
		{Tool: "file_download", Input: input{"path": "/etc/passwd"}, Text: "root"},
		{Tool: "file_upload", Input: input{"path": "b.txt", "content": "eA=="}, Text: "1 bytes"},
		{Tool: "file_search", Input: input{"file": "/etc/passwd", "regex": "root"}, Text: "root"},
		{Tool: "file_find", Input: input{"glob": "*.none"}, Text: "No files match"},
		{Tool: "glob", Input: input{"pattern": "**/*.none"}, Text: "No files match"},
		{Tool: "grep", Input: input{"pattern": "nowhere"}, Text: "No matches"},
		{Tool: "shell_exec", Input: input{"command": "pwd"}, Text: "[SUCCESS]\n" + Dir},
		{Tool: "shell_interactive", Input: input{"action": "start", "command": "pwd; read x", "wait": 20}, Text: Dir},
		{Tool: "shell_view", Codes: missing},
		{Tool: "shell_write", Input: input{"input": "x"}, Codes: missing},
		{Tool: "shell_wait", Codes: missing},
		{Tool: "shell_kill", Codes: missing},
		{Tool: "shell_sessions", Text: "No shells yet"},
		{Tool: "git_clone", Needs: "git", Input: input{"url": "/none", "destination": "copy"}, Codes: codes(sandpit.NotFound, sandpit.Conflict)},
		{Tool: "git_status", Needs: "git", Codes: missing},
		{Tool: "git_commit", Needs: "git", Input: input{"message": "m"}, Codes: missing},
		{Tool: "git_push", Needs: "git", Codes: missing},
		{Tool: "http_request", Input: input{"url": "http://127.0.0.1:1/"}, Codes: codes(sandpit.Unavailable)},
		{Tool: "env_get", Text: "No variables"},
		{Tool: "env_set", Input: input{"name": "A", "value": "b"}, Text: "A is set"},
		{Tool: "process_list", Text: "PID"},
		{Tool: "workspace_info", Text: Dir},
		{Tool: "workspace_state", Text: "is empty"},
		{Tool: "workspace_health", Text: "healthy"},
		{Tool: "sandbox_health", Text: "healthy"},
		{Tool: "sandbox_context", Text: "working directory " + Dir + "\n"},
		{Tool: "sandbox_context", Needs: "python3", Text: "python: Python 3"},
		{Tool: "sandbox_packages", Needs: "python3", Input: input{"language": "python"}, Text: " packages"},
		{Tool: "python_exec", Needs: "python3", Input: input{"code": where}, Text: Dir},
		{Tool: "jupyter_execute", Needs: "python3", Input: input{"code": where, "session_id": "first"}, Text: Dir},
		{Tool: "pip_install", Needs: "python3", Input: input{"packages": []string{"none"}}, Codes: codes(sandpit.Unavailable, sandpit.Unsupported)},
		{Tool: "javascript_execute", Needs: "node", Input: input{"code": "process.cwd()"}, Text: Dir},
		{Tool: "nodejs_execute", Needs: "node", Input: input{"code": "console.log(process.cwd())"}, Text: Dir},
		{Tool: "code_execute", Needs: "python3", Input: input{"language": "python", "code": where}, Text: Dir},
		{Tool: "sandbox_vision", Input: input{"file_path": "none.png"}, Codes: missing},
		{Tool: "mcp_list_servers", Text: "No MCP servers"},
		{Tool: "mcp_list_tools", Input: input{"server_name": "none"}, Codes: missing},
		{Tool: "mcp_execute", Input: input{"server_name": "none", "tool_name": "none"}, Codes: missing},
		{Tool: "bash", Input: input{"command": "pwd"}, Text: Dir},
		{Tool: "sandbox_shell", Input: input{"action": "execute_command", "command": "pwd", "blocking": true}, Text: Dir},
		{Tool: "sandbox_files", Input: input{"action": "create_file", "file_path": "c.txt", "file_contents": "x"}, Text: "1 bytes"},
		{Tool: "str_replace_editor", Input: input{"command": "view", "path": "/etc/passwd"}, Text: "root"},
	}
}

func browserCalls() []Call {
	nothing := codes(sandpit.NotFound, sandpit.Conflict)
	return []Call{
		{Tool: "browser_open", Input: input{"url": "data:text/html,<title>t</title>hello"}, Text: "hello"},
		{Tool: "sandbox_browser", Input: input{"action": "get_current_state"}, Text: "about:blank"},
		{Tool: "browser_screenshot", Text: "720"},
		{Tool: "browser_state", Text: "about:blank"},
		{Tool: "browser_text"},
		{Tool: "browser_scroll"},
		{Tool: "browser_wait", Input: input{"seconds": 0}},
		{Tool: "browser_click", Input: input{"index": 0}, Codes: nothing},
		{Tool: "browser_fill", Input: input{"index": 0, "text": "x"}, Codes: nothing},
		{Tool: "browser_select", Input: input{"index": 0}, Codes: nothing},
		{Tool: "browser_press", Input: input{"key": "a"}, Text: "about:blank"},
		{Tool: "browser_evaluate", Input: input{"expression": "6 * 7"}, Text: "42"},
		{Tool: "browser_action", Input: input{"action_type": "click", "x": 1, "y": 1}, Text: "Done"},
		{Tool: "browser_back", Codes: nothing},
		{Tool: "browser_tabs", Text: "about:blank"},
		{Tool: "browser_config", Input: input{"resolution": "800x600"}, Text: "800"},
		{Tool: "browser_info"},
		{Tool: "browser_close"},
	}
}
