package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

func systemTools() []Tool {
	only := Hints{ReadOnly: true, Idempotent: true}
	return []Tool{
		{
			Name: "env_get", Title: "Get environment variables", Category: System, Hints: only,
			Description: "Return the environment variables set with env_set, or the value of one. Secret values are masked.",
			function:    newFunction(envGet),
		}, {
			Name: "env_set", Title: "Set an environment variable", Category: System, Hints: Hints{Idempotent: true},
			Description: "Set an environment variable for all later commands of this session, including open shells.",
			function:    newFunction(envSet),
		}, {
			Name: "process_list", Title: "List processes", Category: System, Hints: only,
			Description: "List the processes of this session's user. The image need not have ps.",
			function:    newFunction(processList),
		}, {
			Name: "workspace_info", Title: "Describe the workspace", Category: System, Hints: only,
			Description: "Return the working directory, the session ID and its creation time.",
			function:    newFunction(workspaceInfo),
		}, {
			Name: "workspace_state", Title: "Show the workspace", Category: System, Hints: only, Aliases: []string{"get_workspace_state"},
			Description: "Return the files at the top level of the working directory with the contents of text files. Build output and installed packages are left out.",
			function:    newFunction(workspaceState),
		}, {
			Name: "workspace_health", Title: "Check the workspace", Category: System, Hints: only,
			Description: "Check whether commands run and files can be written in the workspace, and measure the time.",
			function:    newFunction(checkHealth),
		}, {
			Name: "sandbox_health", Title: "Check the sandbox", Category: System, Hints: only,
			Description: "Check whether the sandbox responds, and measure the time.",
			function:    newFunction(checkHealth),
		}, {
			Name: "sandbox_context", Title: "Describe the sandbox", Category: System, Hints: only,
			Description: "Return the operating system, home directory and installed languages.",
			function:    newFunction(sandboxContext),
		}, {
			Name: "sandbox_packages", Title: "List packages", Category: System, Hints: only,
			Description: "List the installed packages of Python or Node.js, by default the first 50.",
			function:    newFunction(sandboxPackages),
		},
	}
}

var envPattern = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

type envGetInput struct {
	Name string `json:"name,omitempty" jsonschema:"the variable; default: all"`
}

type envData struct {
	Variables map[string]string `json:"variables"`
}

func envGet(_ context.Context, s *Session, in envGetInput) (Result, error) {
	env := s.environment()
	if in.Name != "" {
		value, set := env[in.Name]
		if !set {
			return Result{}, sandpit.Errorf(sandpit.NotFound, "variable %.100q was not set with env_set", in.Name)
		}
		env = map[string]string{in.Name: value}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if s.secretSet().has(env[name]) {
			env[name] = mask
		}
		fmt.Fprintf(&b, "%s=%s\n", name, env[name])
	}
	if len(env) == 0 {
		b.WriteString("No variables are set")
	}
	return Result{Text: b.String(), Data: envData{env}}, nil
}

type envSetInput struct {
	Name   string `json:"name" jsonschema:"the variable"`
	Value  string `json:"value" jsonschema:"its value"`
	Secret bool   `json:"secret,omitempty" jsonschema:"mask the value in all results of tools" default:"false"`
}

const (
	maxVariables = 200
	maxVariable  = 32 << 10
)

func envSet(ctx context.Context, s *Session, in envSetInput) (Result, error) {
	if !envPattern().MatchString(in.Name) || len(in.Name) > 256 {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "invalid environment variable name %.100q", in.Name)
	}
	if len(in.Value) > maxVariable || strings.IndexByte(in.Value, 0) >= 0 {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "invalid value of %s: want at most %d bytes without zero bytes", in.Name, maxVariable)
	}
	if in.Secret {
		if len(in.Value) < minSecret {
			return Result{}, sandpit.Errorf(sandpit.Invalid, "a secret needs at least %d characters to be masked", minSecret)
		}
		s.secretSet().hide(in.Value)
	}
	s.mu.Lock()
	_, known := s.env[in.Name]
	if full := !known && len(s.env) == maxVariables; full {
		s.mu.Unlock()
		return Result{}, sandpit.Errorf(sandpit.Exhausted, "%d variables are set, the maximum", maxVariables)
	}
	s.env[in.Name] = in.Value
	s.mu.Unlock()
	for _, info := range s.shells.List() {
		sh, err := s.shells.Get(info.ID)
		if err != nil {
			continue // it has just ended
		}
		_, err = sh.Run(ctx, shell.RunRequest{Command: "export " + in.Name + "=" + quoteWord(in.Value)})
		if err != nil {
			return Result{}, fmt.Errorf("shell %s: %w", info.ID, err)
		}
	}
	return Result{Text: in.Name + " is set"}, nil
}

type processInput struct {
	All bool `json:"all,omitempty" jsonschema:"include processes of all users" default:"false"`
}

func processList(ctx context.Context, s *Session, in processInput) (Result, error) {
	request := applet.ProcessesRequest{}
	if !in.All || s.o.Confine {
		who, err := callApplet[applet.IdentityInfo](ctx, s, applet.Identity, struct{}{})
		if err != nil {
			return Result{}, err
		}
		request.UIDs = []int{who.UID}
	}
	list, err := callApplet[applet.ProcessList](ctx, s, applet.Processes, request)
	if err != nil {
		return Result{}, err
	}
	var b strings.Builder
	b.WriteString("PID  PPID  USER  CPU  MEMORY  COMMAND\n")
	for i, p := range list.Processes {
		list.Processes[i].Command = s.secretSet().maskCut(p.Command, false, len(p.Command) >= applet.MaxCommand)
		fmt.Fprintf(&b, "%d  %d  %d  %.1fs  %d MiB  %s\n", p.PID, p.PPID, p.UID, p.CPU, p.Memory>>20, list.Processes[i].Command)
	}
	if list.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more\n", list.Omitted)
	}
	return Result{Text: b.String(), Data: list}, nil
}

type workspaceData struct {
	Session   string    `json:"session_id"`
	Path      string    `json:"workspace_path"`
	CreatedAt time.Time `json:"created_at"`
	Shared    bool      `json:"shared"`
	Shells    int       `json:"shells"`
}

func workspaceInfo(_ context.Context, s *Session, _ nothing) (Result, error) {
	data := workspaceData{s.o.ID, s.o.Dir, s.o.CreatedAt, s.o.Confine, len(s.shells.List())}
	return Result{
		Text: fmt.Sprintf("Session %s works in %s since %s", data.Session, data.Path, data.CreatedAt.UTC().Format(time.RFC3339)), Data: data,
	}, nil
}

type healthData struct {
	Healthy bool    `json:"healthy"`
	Exec    float64 `json:"exec_ms"`
	Write   float64 `json:"write_ms"`
}

func checkHealth(ctx context.Context, s *Session, _ nothing) (Result, error) {
	begun := time.Now()
	if _, err := callApplet[applet.IdentityInfo](ctx, s, applet.Identity, struct{}{}); err != nil {
		return Result{}, err
	}
	data := healthData{Exec: millisecondsSince(begun)}
	begun = time.Now()
	probe := s.statePath(outputDir + "/.probe")
	if err := s.files.WriteFile(ctx, probe, strings.NewReader("ok")); err != nil {
		return Result{}, err
	}
	if err := s.files.Remove(ctx, probe); err != nil {
		return Result{}, err
	}
	data.Write, data.Healthy = millisecondsSince(begun), true
	return Result{Text: fmt.Sprintf("healthy: a command took %.1f ms, a file %.1f ms", data.Exec, data.Write), Data: data}, nil
}

func millisecondsSince(since time.Time) float64 {
	return float64(time.Since(since).Microseconds()) / 1000
}

type contextData struct {
	applet.IdentityInfo
	Languages map[string]string `json:"languages"`
}

func sandboxContext(ctx context.Context, s *Session, _ nothing) (Result, error) {
	who, err := callApplet[applet.IdentityInfo](ctx, s, applet.Identity, struct{}{})
	if err != nil {
		return Result{}, err
	}
	data := contextData{who, map[string]string{}}
	for name, args := range map[string][]string{
		"python": {"python3", "--version"}, "node": {"node", "--version"}, "git": {"git", "--version"}, "bash": {"bash", "--version"},
	} {
		r, err := s.runProgram(ctx, sandpit.Command{Args: args, Timeout: 20 * time.Second})
		if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.PermissionDenied {
			continue // not in the image, or not for this user
		}
		if err != nil {
			return Result{}, fmt.Errorf("get the version of %s: %w", name, err)
		}
		if r.ExitCode == 0 {
			line, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), "\n")
			data.Languages[name] = line
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s, kernel %s, %s\nuser %d, home %s, working directory %s\n", who.System, who.Kernel, who.Arch, who.UID, who.Home, s.o.Dir)
	for _, name := range slices.Sorted(maps.Keys(data.Languages)) {
		text.WriteString(name + ": " + data.Languages[name] + "\n")
	}
	return Result{Text: text.String(), Data: data}, nil
}

type packagesInput struct {
	Language string `json:"language" jsonschema:"language of the packages" enum:"python,nodejs"`
	Most     int    `json:"limit,omitempty" jsonschema:"maximum number of packages" default:"50" range:"1,2000"`
}

type packageInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type packagesData struct {
	Packages []packageInfo `json:"packages"`
	Total    int           `json:"total"`
}

// pythonPackages lists packages without pip, which an image may lack.
const pythonPackages = `import importlib.metadata as m, json
print(json.dumps(sorted({(d.metadata["Name"], d.version) for d in m.distributions() if d.metadata["Name"]})))`

func sandboxPackages(ctx context.Context, s *Session, in packagesInput) (Result, error) {
	args := []string{"python3", "-c", pythonPackages}
	if in.Language == "nodejs" {
		args = []string{"npm", "ls", "--global", "--json", "--depth=0"}
	}
	r, err := s.runProgram(ctx, sandpit.Command{Args: args})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return Result{}, sandpit.WithHint(err, "this image has no "+in.Language)
	}
	if err != nil {
		return Result{}, err
	}
	found, err := parsePackages(in.Language, r.Stdout)
	if err != nil {
		return Result{}, err
	}
	data := packagesData{Packages: found[:min(len(found), in.Most)], Total: len(found)}
	var b strings.Builder
	for _, p := range data.Packages {
		fmt.Fprintf(&b, "%s %s\n", p.Name, p.Version)
	}
	b.WriteString(strconv.Itoa(data.Total) + " packages")
	return Result{Text: b.String(), Data: data}, nil
}

func parsePackages(language, out string) ([]packageInfo, error) {
	found := []packageInfo{}
	if language == "python" {
		var pairs [][2]string
		if err := json.Unmarshal([]byte(out), &pairs); err != nil {
			return nil, sandpit.Errorf(sandpit.Internal, "list the packages of python: %w", err)
		}
		for _, p := range pairs {
			found = append(found, packageInfo{p[0], p[1]})
		}
		return found, nil
	}
	var tree struct {
		Dependencies map[string]struct {
			Version string `json:"version"`
		} `json:"dependencies"`
	}
	if err := json.Unmarshal([]byte(out), &tree); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "list the packages of npm: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(tree.Dependencies)) {
		found = append(found, packageInfo{name, tree.Dependencies[name].Version})
	}
	return found, nil
}
