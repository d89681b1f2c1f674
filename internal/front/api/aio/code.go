package aio

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// output is one output of a cell.
type output struct {
	Type      string         `json:"output_type"`
	Name      string         `json:"name,omitempty"`
	Text      string         `json:"text,omitempty"`
	Data      map[string]any `json:"data,omitempty"`
	Count     int            `json:"execution_count,omitempty"`
	Error     string         `json:"ename,omitempty"`
	Value     string         `json:"evalue,omitempty"`
	Traceback []string       `json:"traceback,omitempty"`
}

// cell is what is told of code that has run in a kernel.
type cell struct {
	Session  string `json:"session_id"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	TimedOut bool   `json:"timed_out"`
	Count    int    `json:"execution_count"`
	Results  []struct {
		Text     string          `json:"text"`
		HTML     string          `json:"html"`
		Markdown string          `json:"markdown"`
		LaTeX    string          `json:"latex"`
		SVG      string          `json:"svg"`
		JSON     json.RawMessage `json:"json"`
		Main     bool            `json:"is_main_result"`
	} `json:"results"`
	Error *struct {
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	} `json:"error"`
}

func (c cell) toStatus() string {
	switch {
	case c.TimedOut:
		return "timeout"
	case c.Error != nil:
		return "error"
	}
	return "ok"
}

// toOutputs are what the cell has shown, pictures last.
func (c cell) toOutputs(images []tool.Image) []output {
	list := []output{}
	if c.Stdout != "" {
		list = append(list, output{Type: "stream", Name: "stdout", Text: c.Stdout})
	}
	if c.Stderr != "" {
		list = append(list, output{Type: "stream", Name: "stderr", Text: c.Stderr})
	}
	for _, r := range c.Results {
		o := output{Type: "display_data", Data: map[string]any{}}
		if r.Main {
			o.Type, o.Count = "execute_result", c.Count
		}
		for kind, text := range map[string]string{
			"text/plain": r.Text, "text/html": r.HTML, "text/markdown": r.Markdown, "text/latex": r.LaTeX, "image/svg+xml": r.SVG,
		} {
			if text != "" {
				o.Data[kind] = text
			}
		}
		if len(r.JSON) > 0 {
			o.Data["application/json"] = r.JSON
		}
		list = append(list, o)
	}
	for _, i := range images {
		list = append(list, output{Type: "display_data", Data: map[string]any{i.MIME: base64.StdEncoding.EncodeToString(i.Data)}})
	}
	if e := c.Error; e != nil {
		list = append(list, output{Type: "error", Error: e.Name, Value: e.Value, Traceback: []string{e.Traceback}})
	}
	return list
}

// codeRequest is code of any kind.
type codeRequest struct {
	Language string            `json:"language"`
	Code     string            `json:"code"`
	Timeout  *float64          `json:"timeout"`
	Kernel   string            `json:"kernel_name"`
	Session  string            `json:"session_id"`
	Stdin    string            `json:"stdin"`
	Files    map[string]string `json:"files"`
	Stateful bool              `json:"stateful"`
	Cwd      string            `json:"cwd"`
}

func (c *call) readCode() (in codeRequest, err error) {
	if err = c.readBody(&in); err == nil && in.Cwd != "" {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "cwd cannot be chosen here"), "change it in the code")
	}
	return in, err
}

func jupyterExecute(c *call) (any, string, error) {
	in, err := c.readCode()
	if err != nil {
		return nil, "", err
	}
	in.Kernel, in.Session = cmp.Or(in.Kernel, "python3"), cmp.Or(in.Session, "jupyter-"+rand.Text()[:8])
	var result cell
	r, err := c.callTool("jupyter_execute", fields{"code": &in.Code, "timeout": in.Timeout, "kernel_name": in.Kernel, "session_id": in.Session}, &result)
	if err != nil {
		return nil, "", err
	}
	return map[string]any{
		"kernel_name": in.Kernel, "session_id": in.Session, "status": result.toStatus(), "execution_count": result.Count, "outputs": result.toOutputs(r.Images), "code": in.Code,
	}, "Code executed", nil
}

// jupyterCreate names a session, which begins with its first code.
func jupyterCreate(c *call) (any, string, error) {
	in, err := c.readCode()
	if err != nil {
		return nil, "", err
	}
	return map[string]string{
		"session_id": cmp.Or(in.Session, "jupyter-"+rand.Text()[:8]), "kernel_name": cmp.Or(in.Kernel, "python3"), "message": "Session created",
	}, "Session created", nil
}

func nodeExecute(c *call) (any, string, error) {
	in, err := c.readCode()
	if err != nil {
		return nil, "", err
	}
	in.Language = "javascript"
	if in.Stateful {
		return c.runCell(in, "javascript_execute", fields{"code": &in.Code, "timeout": in.Timeout})
	}
	var result struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
		TimedOut bool   `json:"timed_out"`
	}
	run := fields{"code": &in.Code, "timeout": in.Timeout, "stdin": in.Stdin}
	if len(in.Files) > 0 {
		run["files"] = in.Files
	}
	if _, err := c.callTool("nodejs_execute", run, &result); err != nil {
		return nil, "", err
	}
	status := "ok"
	switch {
	case result.TimedOut:
		status = "timeout"
	case result.ExitCode != 0:
		status = "error"
	}
	outputs := cell{Stdout: result.Stdout, Stderr: result.Stderr}
	return execution{in.Language, status, in.Code, result.Stdout, result.Stderr, result.ExitCode, outputs.toOutputs(nil)}, "Code executed", nil
}

func codeExecute(c *call) (any, string, error) {
	in, err := c.readCode()
	if err != nil {
		return nil, "", err
	}
	return c.runCell(in, "code_execute", fields{"language": in.Language, "code": &in.Code, "timeout": in.Timeout})
}

func (c *call) runCell(in codeRequest, name string, run fields) (any, string, error) {
	var result cell
	r, err := c.callTool(name, run, &result)
	if err != nil {
		return nil, "", err
	}
	exit := 0
	if result.toStatus() != "ok" {
		exit = 1
	}
	return execution{in.Language, result.toStatus(), in.Code, result.Stdout, result.Stderr, exit, result.toOutputs(r.Images)}, "Code executed", nil
}

// execution is what AIO tells of code that has run.
type execution struct {
	Language string   `json:"language"`
	Status   string   `json:"status"`
	Code     string   `json:"code"`
	Stdout   string   `json:"stdout"`
	Stderr   string   `json:"stderr"`
	ExitCode int      `json:"exit_code"`
	Outputs  []output `json:"outputs"`
}

func codeInfo(*call) (any, string, error) {
	languages := []map[string]any{}
	for _, name := range []string{"python", "javascript"} {
		languages = append(languages, map[string]any{"language": name, "description": "a kernel that keeps its variables", "default_timeout": 30, "max_timeout": 3600})
	}
	return map[string]any{"languages": languages}, "", nil
}

func browserInfo(c *call) (any, string, error) {
	var about map[string]any
	_, err := c.callTool("browser_info", nil, &about)
	// Nothing inside listens for who would drive it past the tools.
	return map[string]any{"user_agent": about["user_agent"], "viewport": about["viewport"], "cdp_url": "", "vnc_url": ""}, "", err
}

func browserScreenshot(c *call) (any, string, error) {
	r, err := c.callTool("browser_screenshot", nil, nil)
	if err != nil {
		return nil, "", err
	}
	if len(r.Images) != 1 {
		return nil, "", sandpit.Errorf(sandpit.Internal, "the browser gives %d pictures", len(r.Images))
	}
	c.w.Header().Set("Content-Type", r.Images[0].MIME)
	c.writeRaw(http.StatusOK, r.Images[0].Data)
	return nil, "", nil
}

// browserActions are those of the browser by the names that AIO has for them.
func browserActions() map[string]string {
	return map[string]string{
		"MOVE_TO": "move_to", "MOVE_REL": "move_rel", "CLICK": "click", "RIGHT_CLICK": "right_click", "DOUBLE_CLICK": "double_click", "DRAG_TO": "drag_to",
		"DRAG_REL": "drag_rel", "SCROLL": "scroll", "TYPING": "typing", "PRESS": "press", "KEY_DOWN": "key_down", "KEY_UP": "key_up", "HOTKEY": "hotkey", "WAIT": "wait",
	}
}

func browserAction(c *call) (any, string, error) {
	var in struct {
		Action   string   `json:"action_type"`
		X        *float64 `json:"x"`
		Y        *float64 `json:"y"`
		OffsetX  *float64 `json:"x_offset"`
		OffsetY  *float64 `json:"y_offset"`
		DX       *float64 `json:"dx"`
		DY       *float64 `json:"dy"`
		Text     string   `json:"text"`
		Key      string   `json:"key"`
		Keys     []string `json:"keys"`
		Duration *float64 `json:"duration"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	name, known := browserActions()[in.Action]
	if !known {
		return nil, "", sandpit.Errorf(sandpit.Invalid, "there is no action %.40q here", in.Action)
	}
	act := fields{
		"action_type": name, "x": in.X, "y": in.Y, "delta_x": cmp.Or(in.OffsetX, in.DX), "delta_y": cmp.Or(in.OffsetY, in.DY),
		"text": in.Text, "key": in.Key, "duration": in.Duration,
	}
	if len(in.Keys) > 0 {
		act["keys"] = in.Keys
	}
	if _, err := c.callTool("browser_action", act, nil); err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(map[string]string{"status": "success", "action_performed": in.Action})
	if err == nil {
		c.w.Header().Set("Content-Type", "application/json")
		c.writeRaw(http.StatusOK, text)
	}
	return nil, "", err
}

func mcpServers(c *call) (any, string, error) {
	var found struct {
		Servers []struct {
			Name string `json:"name"`
		} `json:"servers"`
	}
	_, err := c.callTool("mcp_list_servers", nil, &found)
	names := []string{}
	for _, s := range found.Servers {
		names = append(names, s.Name)
	}
	return names, "", err
}

func mcpTools(c *call) (any, string, error) {
	var found struct {
		Tools []struct {
			Tool        string          `json:"tool"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"input_schema"`
		} `json:"tools"`
	}
	_, err := c.callTool("mcp_list_tools", fields{"server_name": c.r.PathValue("server")}, &found)
	list := []map[string]any{}
	for _, t := range found.Tools {
		list = append(list, map[string]any{"name": t.Tool, "description": t.Description, "inputSchema": t.Schema})
	}
	return map[string]any{"tools": list}, "", err
}

func mcpExecute(c *call) (any, string, error) {
	arguments := map[string]any{}
	if c.r.ContentLength != 0 {
		if err := c.readBody(&arguments); err != nil {
			return nil, "", err
		}
	}
	r, err := c.callTool("mcp_execute", fields{"server_name": c.r.PathValue("server"), "tool_name": c.r.PathValue("tool"), "arguments": arguments}, nil)
	if err != nil {
		return nil, "", err
	}
	content := []map[string]any{{"type": "text", "text": r.Text}}
	for _, i := range r.Images {
		content = append(content, map[string]any{"type": "image", "mimeType": i.MIME, "data": base64.StdEncoding.EncodeToString(i.Data)})
	}
	return map[string]any{"content": content, "isError": r.Failed}, "", nil
}
