package aio

import (
	"encoding/base64"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// newRoutes are all requests that are understood.
func newRoutes() map[string]handler {
	return map[string]handler{
		"GET /v1/sandbox":                    getContext,
		"GET /v1/sandbox/packages/python":    listPackages("python"),
		"GET /v1/sandbox/packages/nodejs":    listPackages("nodejs"),
		"POST /v1/shell/exec":                shellExec,
		"POST /v1/shell/view":                shellView,
		"POST /v1/shell/wait":                shellWait,
		"POST /v1/shell/write":               shellWrite,
		"POST /v1/shell/kill":                shellKill,
		"POST /v1/shell/sessions/create":     shellCreate,
		"GET /v1/shell/sessions":             shellSessions,
		"POST /v1/file/read":                 fileRead,
		"POST /v1/file/write":                fileWrite,
		"POST /v1/file/replace":              fileReplace,
		"POST /v1/file/search":               fileSearch,
		"POST /v1/file/find":                 fileFind,
		"POST /v1/file/list":                 fileList,
		"POST /v1/file/upload":               fileUpload,
		"GET /v1/file/download":              fileDownload,
		"POST /v1/file/str_replace_editor":   fileEditor,
		"POST /v1/jupyter/execute":           jupyterExecute,
		"POST /v1/jupyter/sessions/create":   jupyterCreate,
		"POST /v1/nodejs/execute":            nodeExecute,
		"POST /v1/code/execute":              codeExecute,
		"GET /v1/code/info":                  codeInfo,
		"GET /v1/browser/info":               browserInfo,
		"GET /v1/browser/screenshot":         browserScreenshot,
		"POST /v1/browser/actions":           browserAction,
		"GET /v1/mcp/servers":                mcpServers,
		"GET /v1/mcp/{server}/tools":         mcpTools,
		"POST /v1/mcp/{server}/tools/{tool}": mcpExecute,
	}
}

func cutPattern(pattern string) (method, path string, ok bool) { return strings.Cut(pattern, " ") }

// contextData is what AIO tells of a sandbox, beside the envelope and not in it.
type contextData struct {
	envelope

	Home      string        `json:"home_dir"`
	Workspace string        `json:"workspace"`
	Version   string        `json:"version"`
	Detail    contextDetail `json:"detail"`
}

func (d contextData) toEnvelope() any { return d }

type contextDetail struct {
	System  map[string]any        `json:"system"`
	Runtime map[string][]toolSpec `json:"runtime"`
	Utils   []string              `json:"utils"`
}

type toolSpec struct {
	Version string `json:"ver"`
	Command string `json:"bin"`
}

func getContext(c *call) (any, string, error) {
	var about struct {
		Home      string            `json:"home"`
		System    string            `json:"os"`
		Kernel    string            `json:"kernel"`
		Arch      string            `json:"arch"`
		UID       int               `json:"uid"`
		Languages map[string]string `json:"languages"`
	}
	if _, err := c.callTool("sandbox_context", nil, &about); err != nil {
		return nil, "", err
	}
	d := contextData{envelope: envelope{Success: true, Message: "Sandbox context"}, Home: about.Home, Workspace: c.session.session.Dir(), Version: c.server.o.Version}
	d.Detail = contextDetail{
		System:  map[string]any{"os": about.System, "os_version": about.Kernel, "arch": about.Arch, "user": strconv.Itoa(about.UID), "home_dir": about.Home},
		Runtime: map[string][]toolSpec{"python": {}, "nodejs": {}}, Utils: []string{},
	}
	for name, bin := range map[string]string{"python": "python3", "node": "node"} {
		if version := about.Languages[name]; version != "" {
			key := strings.Replace(name, "node", "nodejs", 1)
			d.Detail.Runtime[key] = append(d.Detail.Runtime[key], toolSpec{strings.TrimPrefix(strings.TrimPrefix(version, "Python "), "v"), bin})
		}
	}
	return d, "", nil
}

func listPackages(language string) handler {
	return func(c *call) (any, string, error) {
		var found struct {
			Packages []struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"packages"`
		}
		_, err := c.callTool("sandbox_packages", fields{"language": language, "limit": 2000}, &found)
		return found.Packages, "", err
	}
}

func fileRead(c *call) (any, string, error) {
	var in struct {
		File  string `json:"file"`
		Start *int   `json:"start_line"`
		End   *int   `json:"end_line"`
		Sudo  bool   `json:"sudo"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	if in.Sudo || in.Start != nil || in.End != nil {
		r, err := c.callTool("file_read", fields{"file": in.File, "start_line": in.Start, "end_line": in.End, "sudo": in.Sudo}, nil)
		return map[string]any{"file": in.File, "content": r.Text}, "File read", err
	}
	data, err := c.readFile(in.File)
	return map[string]any{"file": in.File, "content": strings.ToValidUTF8(string(data), "?")}, "File read", err
}

// maxFile is the largest file that is handed out as a whole, in bytes.
const maxFile = 16 << 20

// readFile reads a file as a whole, which no model is given.
func (c *call) readFile(name string) ([]byte, error) {
	if name == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "the name of the file is missing")
	}
	return c.session.session.ReadFile(c.r.Context(), name, maxFile)
}

func fileWrite(c *call) (any, string, error) {
	var in struct {
		File     string  `json:"file"`
		Content  *string `json:"content"`
		Encoding string  `json:"encoding"`
		Append   bool    `json:"append"`
		Leading  bool    `json:"leading_newline"`
		Trailing bool    `json:"trailing_newline"`
		Sudo     bool    `json:"sudo"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	if in.Encoding != "base64" && in.Content != nil {
		if in.Leading {
			*in.Content = "\n" + *in.Content
		}
		if in.Trailing {
			*in.Content += "\n"
		}
	}
	var done struct {
		File  string `json:"file"`
		Bytes int    `json:"bytes"`
	}
	_, err := c.callTool("file_write", fields{"file": in.File, "content": in.Content, "encoding": in.Encoding, "append": in.Append, "sudo": in.Sudo}, &done)
	return map[string]any{"file": done.File, "bytes_written": done.Bytes}, "File written", err
}

func fileReplace(c *call) (any, string, error) {
	var in struct {
		File string  `json:"file"`
		Old  string  `json:"old_str"`
		New  *string `json:"new_str"`
		Sudo bool    `json:"sudo"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	var done struct {
		File  string `json:"file"`
		Count int    `json:"replaced_count"`
	}
	_, err := c.callTool("file_edit", fields{"file": in.File, "old_str": in.Old, "new_str": in.New, "replace_all": true, "sudo": in.Sudo}, &done)
	return map[string]any{"file": done.File, "replaced_count": done.Count}, "Replacement completed", err
}

func fileSearch(c *call) (any, string, error) {
	var in struct {
		File  string `json:"file"`
		Regex string `json:"regex"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	var found struct {
		Matches []struct {
			Line int    `json:"line"`
			Text string `json:"text"`
		} `json:"matches"`
	}
	_, err := c.callTool("file_search", fields{"file": in.File, "regex": in.Regex}, &found)
	lines, texts := []int{}, []string{}
	for _, m := range found.Matches {
		lines, texts = append(lines, m.Line), append(texts, m.Text)
	}
	return map[string]any{"file": in.File, "matches": texts, "line_numbers": lines}, "Search completed", err
}

func fileFind(c *call) (any, string, error) {
	var in struct {
		Path string `json:"path"`
		Glob string `json:"glob"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	var found struct {
		Files []struct {
			Path string `json:"path"`
		} `json:"files"`
	}
	_, err := c.callTool("file_find", fields{"path": in.Path, "glob": in.Glob}, &found)
	files := []string{}
	for _, f := range found.Files {
		files = append(files, path.Join(in.Path, f.Path))
	}
	return map[string]any{"path": in.Path, "files": files}, "Find completed", err
}

// fileInfo is one of a list.
type fileInfo struct {
	Name      string `json:"name"`
	Path      string `json:"path"`
	Directory bool   `json:"is_directory"`
	Size      int64  `json:"size"`
	Modified  string `json:"modified_time"`
	Extension string `json:"extension,omitempty"`
}

func fileList(c *call) (any, string, error) {
	var in struct {
		Path      string   `json:"path"`
		Recursive bool     `json:"recursive"`
		Hidden    *bool    `json:"show_hidden"`
		Types     []string `json:"file_types"`
		Depth     *int     `json:"max_depth"`
		Sort      string   `json:"sort_by"`
		Desc      bool     `json:"sort_desc"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	if in.Hidden == nil {
		in.Hidden = new(true)
	}
	var found struct {
		Path  string `json:"path"`
		Files []struct {
			Name     string `json:"name"`
			Type     string `json:"type"`
			Size     int64  `json:"size"`
			Modified string `json:"modified"`
		} `json:"files"`
	}
	list := fields{"path": in.Path, "recursive": in.Recursive, "show_hidden": in.Hidden, "max_depth": in.Depth, "sort_by": in.Sort}
	if _, err := c.callTool("file_list", list, &found); err != nil {
		return nil, "", err
	}
	files, dirs := []fileInfo{}, 0
	for _, f := range found.Files {
		info := fileInfo{path.Base(f.Name), path.Join(found.Path, f.Name), f.Type == "directory", f.Size, f.Modified, path.Ext(f.Name)}
		if len(in.Types) > 0 && !slices.Contains(in.Types, info.Extension) {
			continue
		}
		if info.Directory {
			dirs++
		}
		files = append(files, info)
	}
	if in.Desc {
		slices.Reverse(files)
	}
	return map[string]any{
		"path": found.Path, "files": files, "total_count": len(files), "directory_count": dirs, "file_count": len(files) - dirs,
	}, "Directory listed", nil
}

// uploadCost is how many bytes of memory each byte of an upload takes besides those of
// every body.
const uploadCost = 5

func fileUpload(c *call) (any, string, error) {
	// The file is copied as a part of the form, alone and in base64.
	if err := memory.AccountOf(c.r.Context()).Reserve(uploadCost * c.r.ContentLength); err != nil {
		return nil, "", err
	}
	f, header, err := c.r.FormFile("file")
	if err != nil {
		return nil, "", sandpit.Errorf(sandpit.Invalid, "the form has no file: %w", err)
	}
	defer f.Close()
	defer func() { _ = c.r.MultipartForm.RemoveAll() }() // temporary files, which the system removes too
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, "", sandpit.Errorf(sandpit.Invalid, "the file does not come as a whole: %w", err)
	}
	name := c.r.FormValue("path")
	if name == "" {
		name = path.Base(header.Filename)
	}
	content := base64.StdEncoding.EncodeToString(data)
	var done struct {
		File string `json:"file"`
	}
	_, err = c.callTool("file_upload", fields{"path": name, "content": &content}, &done)
	return map[string]any{"file_path": done.File, "file_size": len(data), "success": err == nil}, "File uploaded", err
}

func fileDownload(c *call) (any, string, error) {
	name := c.r.URL.Query().Get("path")
	data, err := c.readFile(name)
	if err != nil {
		return nil, "", err
	}
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("Content-Disposition", "attachment")
	c.writeRaw(http.StatusOK, data)
	return nil, "", nil
}

// writeRaw writes the answer, which the client must read in a limited time.
func (c *call) writeRaw(status int, data []byte) {
	c.responded = true
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // what cannot have one needs none
	c.w.WriteHeader(status)
	_, _ = c.w.Write(data) // a client that has gone is nobody's business
}

func fileEditor(c *call) (any, string, error) {
	var in struct {
		Command string  `json:"command"`
		Path    string  `json:"path"`
		Text    *string `json:"file_text"`
		Old     string  `json:"old_str"`
		New     *string `json:"new_str"`
		Line    *int    `json:"insert_line"`
		Range   []int   `json:"view_range"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, "", err
	}
	edit := fields{"command": in.Command, "path": in.Path, "file_text": in.Text, "old_str": in.Old, "new_str": in.New, "insert_line": in.Line}
	if in.Range != nil {
		edit["view_range"] = in.Range
	}
	r, err := c.callTool("str_replace_editor", edit, nil)
	return map[string]any{"output": r.Text, "path": in.Path}, "", err
}
