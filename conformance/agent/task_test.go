package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/script"
)

type way = func(*testing.T, *script.Model) model.Model

// TestTasks does tasks with the package: all through OpenAI's responses, and one through each other
// protocol. TestEvaluation does all with the program through the other two.
func TestTasks(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, task := range map[string]func(*testing.T, way){
		"fix a test": fixTest, "serve a page": func(t *testing.T, connect way) { t.Helper(); servePage(t, s, connect) }, "MCP server": useServer,
		"killed sandbox": killSandbox, "budget": refuseAfterBudget, "shared sandbox": shareSandbox, "injection": resistInjection,
	} {
		for protocol, connect := range protocols {
			if protocol == "direct" || protocol != "responses" && name != "fix a test" {
				continue
			}
			t.Run(name+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				task(t, connect)
			})
		}
	}
}

const (
	brokenCode = "def mean(values):\n    return sum(values) / (len(values) + 1)\n"
	testCode   = "import unittest\nfrom stats import mean\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(mean([1, 2, 3]), 2)\n\nunittest.main()\n"
)

// fixTest finds out why a test fails, and fixes the code.
func fixTest(t *testing.T, connect way) {
	t.Helper()
	k := newKit(t, connect, []script.Turn{
		{Thinking: "Set up what the user has.", Text: "I write the files.", Calls: []script.Call{
			{Name: "sandbox_files", Arguments: map[string]any{"action": "create_file", "file_path": "stats.py", "file_contents": brokenCode}},
			{Name: "sandbox_files", Arguments: map[string]any{"action": "create_file", "file_path": "test.py", "file_contents": testCode}},
		}},
		run(`stats.py now has`, "python3 test.py"),
		turn(`FAILED.*exit 1.*AssertionError: 1.5 != 2|AssertionError: 1.5 != 2`, "file_read", map[string]any{"path": "stats.py"}),
		turn(`len\(values\) \+ 1`, "sandbox_files", map[string]any{"action": "str_replace", "file_path": "stats.py", "old_str": " / (len(values) + 1)", "new_str": " / len(values)"}),
		run(`.`, "python3 test.py"),
		finish(`SUCCESS[^$]*OK`, "the mean was divided by one too many"),
	}, nil)
	k.want(agent.Finished, "one too many")
	k.file("/workspace/stats.py", "/ len(values)\n")
}

// calcServer is an MCP server with a tool that adds numbers.
const calcServer = `import json, sys
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/list": result = {"tools": [{"name": "add", "description": "add numbers", "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}]}
    if r["method"] == "tools/call": result = {"content": [{"type": "text", "text": "sum %d" % sum(r["params"]["arguments"].values())}]}
    if r["method"] == "server/discover": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
    elif "id" in r: print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
`

// useServer uses the tool of an MCP server in the sandbox. A second server that does not start is left
// out.
func useServer(t *testing.T, connect way) {
	t.Helper()
	call := turn("the task", "mcp_calc_add", map[string]any{"a": 40, "b": 2})
	call.Expect.Tools = []string{"mcp_calc_add", "sandbox_shell", "terminate", "ask_human"}
	k := newKit(t, connect, []script.Turn{call, finish(`sum 42`, "42")}, func(_ *kit, o *agent.Options) {
		o.MCPServers = map[string]agent.MCPServer{
			"calc": {Command: "python3", Args: []string{"-c", calcServer}, Env: map[string]string{"API_TOKEN": canary}}, "broken": {Command: "/nothing/here"},
		}
	})
	k.want(agent.Finished, "42")
	if !strings.Contains(k.log(), "MCP server broken is left out: ") {
		t.Errorf("no notice about the server that does not start:\n%s", k.log())
	}
}

// TestHostServer has a server on this machine beside one in the sandbox.
func TestHostServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := "import os; names = 'outside' if os.path.exists('" + file + "') else 'inside'\n"
	server := check + strings.ReplaceAll(calcServer, `"sum %d" %`, `names + " %d" %`)
	k := newKit(t, protocols["direct"], []script.Turn{
		turn("", "mcp_host_add", map[string]any{"a": 1, "b": 2}), turn("^outside 3$", "mcp_box_add", map[string]any{"a": 1, "b": 2}), finish("^inside 3$", "both"),
	}, func(_ *kit, o *agent.Options) {
		o.MCPServers = map[string]agent.MCPServer{
			"host": {Command: "python3", Args: []string{"-c", server}, OnHost: true}, "box": {Command: "python3", Args: []string{"-c", server}},
		}
	})
	k.want(agent.Finished, "both")
}

// killSandbox ends the sandbox between two calls. The next one gets another sandbox.
func killSandbox(t *testing.T, connect way) {
	t.Helper()
	k := newKit(t, connect, []script.Turn{
		run("", "echo 1 > first"),
		turn("SUCCESS", "kill", map[string]any{}),
		run("killed", "ls first"),
		run("the sandbox has ended.*the next call gets a new sandbox", "ls first || echo 2 > second"),
		finish("SUCCESS", "recovered"),
	}, func(k *kit, o *agent.Options) {
		o.More = []agent.Tool{{Name: "kill", Description: "x", Call: func(ctx context.Context, _ rawMessage) (string, error) {
			return "killed", k.boxes[0].Destroy(ctx)
		}}}
	})
	k.want(agent.Finished, "recovered")
	if len(k.boxes) != 2 {
		t.Errorf("%d sandboxes", len(k.boxes))
	}
	k.file("/workspace/second", "2")
}

// refuseAfterBudget carries out no call of the response that exceeds the budget.
func refuseAfterBudget(t *testing.T, connect way) {
	t.Helper()
	first, second := run("", "echo 1 > one"), run("SUCCESS", "echo 2 > two")
	first.Usage, second.Usage = &script.Usage{Input: 1000, Output: 10}, &script.Usage{Input: 2000, Output: 10}
	k := newKit(t, connect, []script.Turn{first, second}, func(_ *kit, o *agent.Options) { o.Budget.Tokens = 3000 })
	k.want(agent.BudgetSpent, "Terminated: Reached the budget of 3000 tokens (3020 used)")
	k.file("/workspace/one", "1")
	if got := readFile(t, k.boxes[0].Guest(), "/workspace/two"); got != "" {
		t.Errorf("the call was carried out: %q", got)
	}
}

// shareSandbox has two agents work in a sandbox at the same time.
func shareSandbox(t *testing.T, connect way) {
	t.Helper()
	owner := newKit(t, connect, []script.Turn{run("", "echo owner > shared"), finish("SUCCESS", "ready")}, nil)
	owner.want(agent.Finished, "ready")
	box := owner.boxes[0]
	open := func(context.Context) (agent.Sandbox, error) {
		return agent.Sandbox{ID: box.ID(), Guest: box.Guest()}, nil
	}
	done := make(chan *kit)
	for _, name := range []string{"ann", "bob"} {
		k := newKit(t, connect, []script.Turn{
			run("", "cd /tmp; mkdir -p "+name+"; for i in 1 2 3 4 5; do echo "+name+" >> /workspace/log; sleep 0.1; done"),
			run("SUCCESS", "pwd; cat /workspace/shared; echo "+name+" > /workspace/"+name),
			finish(`/tmp\nowner`, name+" is done"),
		}, func(_ *kit, o *agent.Options) { o.Open = open })
		go func() {
			defer func() { done <- k }()
			k.want(agent.Finished, name+" is done")
		}()
	}
	for range 2 {
		k := <-done
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	owner.file("/workspace/ann", "ann")
	owner.file("/workspace/bob", "bob")
	if got := readFile(t, box.Guest(), "/workspace/log"); strings.Count(got, "ann\n") != 5 || strings.Count(got, "bob\n") != 5 {
		t.Errorf("the common file: %q", got)
	}
}
