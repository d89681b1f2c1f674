package documents_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func withoutSpace(text string) string { return strings.Join(strings.Fields(text), "") }

// checkSettings loads a configuration.
func checkSettings(t *testing.T, text string) {
	t.Helper()
	_, err := config.Load(config.Options{
		Environ: []string{"SANDPIT_CONFIG=/config.toml"}, Home: "/home/user", UID: 1000,
		ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
	})
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// checkRecipe has a template of a page read.
func (r *reader) checkRecipe(t *testing.T, dir, text string) {
	t.Helper()
	for name, content := range map[string]string{"sandpit.toml": text, "requirements.txt": "", "package-lock.json": `{"lockfileVersion": 3, "packages": {}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := r.run(t, dir, "sandpit template validate"); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, text)
	}
}

// checkMCP uses a tool by each of the commands.
func (r *reader) checkMCP(t *testing.T, dir, setUp string, block []string) {
	t.Helper()
	if out, err := r.run(t, dir, "set -e\n"+setUp); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range block {
		if line == "" {
			continue
		}
		line = r.here(line)
		if strings.Contains(line, "--sandbox") { // which names a sandbox of a server's
			line = strings.Replace(line, "sandpit mcp", "sandpit mcp --server http://"+r.address, 1)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
		cmd := exec.CommandContext(ctx, "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, append(slices.Clone(r.environ), "SANDPIT_API_KEY="+r.key)
		var complaints strings.Builder
		cmd.Stderr = &complaints
		session, err := sdk.NewClient(&sdk.Implementation{Name: "reader", Version: "1"}, nil).
			Connect(ctx, &sdk.CommandTransport{Command: cmd, TerminateDuration: limit}, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, &complaints)
			cancel()
			continue
		}
		res, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"command": "echo $((6 * 7))"}})
		var answer []byte
		if err == nil {
			answer, err = json.Marshal(res)
		}
		if err != nil || res.IsError || !strings.Contains(string(answer), `[SUCCESS]\n42`) {
			t.Errorf("%s: %s, %v\n%s", line, answer, err, &complaints)
		}
		if err := session.Close(); err != nil {
			t.Errorf("%s: close: %v\n%s", line, err, &complaints)
		}
		cancel()
	}
}

// checkConsole runs what is after "$ " and compares the output of each command, in which
// numbers, IDs and the width of columns may be others.
func (r *reader) checkConsole(t *testing.T, dir string, block []string) {
	t.Helper()
	const mark = "-- next --"
	var script strings.Builder
	script.WriteString("s=0\n")
	var want []string
	for _, line := range block {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			script.WriteString("echo '" + mark + "'; (exit $s)\n" + command + "\ns=$?\n")
			want = append(want, "")
		} else if line != "" {
			want[len(want)-1] += line + "\n"
		}
	}
	out, _ := r.run(t, dir, script.String()) // the status of the last command is in the output, if it matters
	got := strings.Split(out, mark+"\n")[1:]
	if len(got) != len(want) {
		t.Fatalf("%d outputs, want %d\n%s", len(got), len(want), out)
	}
	for i := range want {
		if shape(got[i]) != shape(want[i]) && want[i] != "" {
			t.Errorf("command %d puts out\n%s\nwant\n%s", i+1, got[i], want[i])
		}
	}
}

// shape is a text without what is different each time.
func shape(text string) string {
	// The IDs come first: they have digits.
	for _, part := range [][2]string{{`\bs[a-z0-9]{19}\b`, "ID"}, {`[0-9]+`, "0"}, {`[ \t]+`, " "}} {
		text = regexp.MustCompile(part[0]).ReplaceAllString(text, part[1])
	}
	return text
}

// checkUsage has the program that is named explain itself, in a sandbox, and compares flags.
func (r *reader) checkUsage(t *testing.T, dir, text string) {
	t.Helper()
	words := strings.Fields(text)
	out, _ := r.run(t, dir, "sandpit run -- "+words[0]+" "+words[1]+" -help") // the status of -help says nothing
	flags := regexp.MustCompile(`\[(-[a-z]+) `).FindAllStringSubmatch(text, -1)
	if len(flags) == 0 {
		t.Errorf("no flags in %q", text)
	}
	for _, flag := range flags {
		if !regexp.MustCompile(`(?m)^\s*` + flag[1] + `\b`).MatchString(out) {
			t.Errorf("there is no flag %s:\n%s", flag[1], out)
		}
	}
}

// checkRoutes looks methods and paths up in the description of the API.
func checkRoutes(t *testing.T, block []string) {
	t.Helper()
	data, err := os.ReadFile("../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal(data, &api); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for path, methods := range api.Paths {
		for method := range methods {
			known[strings.ToUpper(method)+" "+regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(path, "ID")] = true
		}
	}
	for _, line := range block {
		words := strings.Fields(line)
		path, _, _ := strings.Cut(words[1], "?")
		if !known[words[0]+" "+path] {
			t.Errorf("the API has no %s %s", words[0], path)
		}
	}
}

// checkGo compiles statements as a function of a package beside this one.
func checkGo(t *testing.T, text string) {
	t.Helper()
	dir, err := filepath.Abs("snippet")
	if err != nil {
		t.Fatal(err)
	}
	head := ""
	if !strings.Contains(text, ":= client.") {
		head = "var c *client.Client\nvar err error\n"
	}
	text = strings.Replace(text, "    ...\n", "fmt.Println(res)\nreturn err\n", 1)
	code := filepath.Join(t.TempDir(), "snippet.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(dir, "snippet.go"): code}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		code: "package snippet\n\nimport (\n\"context\"\n\"fmt\"\n\"log\"\n\n\"github.com/sandpit-dev/sandpit/agent\"\n" +
			"\"github.com/sandpit-dev/sandpit/agent/model\"\n\"github.com/sandpit-dev/sandpit/client\"\n)\n\nvar (\n_ = fmt.Sprint\n_ = log.Print\n_ = agent.New\n)\n\n" +
			"func Try(ctx context.Context, m model.Model) error {\n" + head + text + "return err\n}\n",
		code + ".json": string(overlay),
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay="+code+".json", "./snippet").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, text)
	}
}
