package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/tool"
)

// mcpTool is the tool that is measured, by one that asks the sandbox once and takes about as
// long each time.
const (
	mcpTool  = "file_list"
	mcpInput = `{"path":"/"}`
)

// mcps measures what the Model Context Protocol adds to a call of a tool: the same call is
// made without it, by a program that is started for it, and by a server.
func (k *kit) mcps(ctx context.Context) (err error) {
	if !k.o.wants(nameMCP) {
		return nil
	}
	direct, end, err := k.directTool(ctx)
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
	list := series{kit: k, n: k.o.samples(200), metrics: []metric{{metricTool, unitMS}}}
	list.add(bySandpit, direct)
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
		list.add(name, func() ([]float64, error) { return callTool(ctx, session) })
	}
	return list.run(ctx)
}

// directTool returns a call of the tool by this program itself, and what ends it.
func (k *kit) directTool(ctx context.Context) (call func() ([]float64, error), end func() error, err error) {
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
	session, err := tool.NewSession(box.Guest(), tool.SessionOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, provider.Close())
	}
	call = func() ([]float64, error) {
		begun := time.Now()
		r := tools.Invoke(ctx, session, mcpTool, []byte(mcpInput))
		if r.Failed {
			return nil, errors.New(lastWords(r.Text))
		}
		return []float64{ms(time.Since(begun))}, nil
	}
	return call, func() error { return errors.Join(session.Close(), provider.Close()) }, nil
}

func callTool(ctx context.Context, session *sdk.ClientSession) ([]float64, error) {
	begun := time.Now()
	r, err := session.CallTool(ctx, &sdk.CallToolParams{Name: mcpTool, Arguments: json.RawMessage(mcpInput)})
	if err == nil && r.IsError {
		err = fmt.Errorf("%s: %+v", mcpTool, r.Content)
	}
	return []float64{ms(time.Since(begun))}, err
}

// bearer shows a key with each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
