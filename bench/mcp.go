package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// toolCall is a call of a tool that is measured.
type toolCall struct{ metric, name, input string }

// toolCalls are a call with one request to the sandbox and a steady duration, and the most frequent
// call of agents.
var toolCalls = []toolCall{
	{metricTool, "file_list", `{"path":"/"}`},
	{metricShellExec, "shell_exec", `{"command":"true"}`},
}

// caller is a way to call tools.
type caller struct {
	name string
	call func(context.Context, toolCall) error
}

// mcps measures what the Model Context Protocol adds to a tool call: the same call without it, through
// a program that is started for it, and through a server. It also compares a command in a shell with
// a program that is started without a shell.
func (k *kit) mcps(ctx context.Context) (err error) {
	if !k.o.wants(nameMCP) {
		return nil
	}
	direct, end, err := k.directTools(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	server, url, key, err := k.openServer(ctx, "mcp", "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close(ctx)) }()
	program := exec.CommandContext(context.WithoutCancel(ctx), k.engine, "mcp", k.root.path)
	program.Env = append(program.Environ(), "SANDPIT_STATE_DIR="+filepath.Join(k.dir, "mcp-cli"), "SANDPIT_URL=")
	callers := direct
	for name, transport := range map[string]sdk.Transport{
		byMCP: &sdk.CommandTransport{Command: program, TerminateDuration: cleanTimeout},
		byMCPHTTP: &sdk.StreamableClientTransport{
			Endpoint: url + "/mcp?image=" + k.root.path, HTTPClient: &http.Client{Transport: bearer(key)},
		},
	} {
		session, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, transport, nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, session.Close()) }()
		callers = append(callers, caller{name, overMCP(session)})
	}
	var errs []error
	for _, c := range toolCalls {
		list := series{kit: k, n: k.o.samples(200), metrics: []metric{{c.metric, unitMS}}}
		for _, by := range callers {
			if by.name == byExec && c.metric != metricShellExec {
				continue
			}
			list.add(by.name, func() ([]float64, error) {
				took, err := timed(func() error { return by.call(ctx, c) })
				return []float64{ms(took)}, err
			})
		}
		errs = append(errs, list.run(ctx))
	}
	return errors.Join(errs...)
}

// directTools returns tool calls in this process, calls of programs without a tool, and a function
// that ends them.
func (k *kit) directTools(ctx context.Context) (callers []caller, end func() error, err error) {
	provider, err := openProvider(filepath.Join(k.dir, "mcp-direct"), k.images(), k.engine)
	if err != nil {
		return nil, nil, withHint(err)
	}
	box, err := provider.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(k.root.path)})
	if err != nil {
		return nil, nil, errors.Join(withHint(err), provider.Close())
	}
	tools, err := tool.New(nil)
	if err != nil {
		return nil, nil, errors.Join(err, provider.Close())
	}
	session, err := tool.NewSession(ctx, box.Guest(), tool.SessionOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, provider.Close())
	}
	invoke := func(ctx context.Context, c toolCall) error {
		if r := tools.Invoke(ctx, session, c.name, []byte(c.input)); r.Failed {
			return errors.New(lastWords(r.Text))
		}
		return nil
	}
	run := func(ctx context.Context, _ toolCall) error {
		p, err := box.Guest().Start(ctx, sandpit.Command{Args: []string{"true"}})
		if err != nil {
			return err
		}
		_, err = p.Wait(ctx)
		return err
	}
	return []caller{{bySandpit, invoke}, {byExec, run}}, func() error { return errors.Join(session.Close(), provider.Close()) }, nil
}

func overMCP(session *sdk.ClientSession) func(context.Context, toolCall) error {
	return func(ctx context.Context, c toolCall) error {
		r, err := session.CallTool(ctx, &sdk.CallToolParams{Name: c.name, Arguments: json.RawMessage(c.input)})
		if err == nil && r.IsError {
			err = fmt.Errorf("%s: %+v", c.name, r.Content)
		}
		return err
	}
}

// bearer sends a key with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
