package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// maxToolInput bounds an input, in bytes.
const maxToolInput = 16 << 20

func newTool(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tool",
		Short: "List and call the tools for agents",
		Long: `List and call the tools for agents, which "sandpit mcp" offers. ls lists them, show
describes the input of one, and call calls one in a sandbox of a server.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newToolList(a), newToolShow(a), newToolCall(a))
	return cmd
}

// toolListCommand has the options of sandpit tool ls.
type toolListCommand struct {
	output
	chosen []string
}

func newToolList(a *app) *cobra.Command {
	var o toolListCommand
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Aliases:           []string{"list"},
		Short:             "List the tools",
		Example:           "  sandpit tool ls --tools file,shell",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(o.run),
	}
	o.addFlags(cmd, "print names only")
	cmd.Flags().StringSliceVar(&o.chosen, "tools", nil, "`tools` to list: default, all, categories ("+strings.Join(categoryNames(), ", ")+") or names of tools (default all)")
	return cmd
}

func (o *toolListCommand) run(_ *cobra.Command, a *app, _ []string) error {
	if len(o.chosen) == 0 {
		o.chosen = []string{tool.ChooseAll}
	}
	tools, err := tool.Choose(nil, o.chosen...)
	if err != nil {
		return err
	}
	l := listing{document: tools.Tools(), rows: [][]string{{"NAME", "CATEGORY", "DEFAULT", "TITLE"}}}
	for _, t := range tools.Tools() {
		l.ids = append(l.ids, t.Name)
		byDefault := ""
		if t.IsDefault() {
			byDefault = "yes"
		}
		l.rows = append(l.rows, []string{t.Name, string(t.Category), byDefault, t.Title})
	}
	return a.showListing(o.output, l)
}

// toolShowCommand has the options of sandpit tool show.
type toolShowCommand struct {
	function bool
}

func newToolShow(a *app) *cobra.Command {
	var o toolShowCommand
	cmd := &cobra.Command{
		Use:               "show [flags] NAME",
		Short:             "Describe a tool, with the schema of its input",
		Long:              "Describe a tool as JSON, with the schema of its input.",
		Example:           "  sandpit tool show python_exec",
		Args:              wantArgs(1, 1, "the name of a tool"),
		ValidArgsFunction: completeTools(0),
		RunE:              a.withoutClient(o.run),
	}
	cmd.Flags().BoolVar(&o.function, "function", false, "print it in the form that APIs of models use for functions")
	return cmd
}

func (o *toolShowCommand) run(_ *cobra.Command, a *app, args []string) error {
	tools, err := tool.New(nil)
	if err != nil {
		return err
	}
	t, err := tools.Tool(args[0])
	if err != nil {
		return verbError{err}
	}
	if o.function {
		return printJSON(a.Out, t.Function())
	}
	return printJSON(a.Out, struct {
		tool.Tool

		Input any `json:"input_schema"`
	}{t, t.Schema()})
}

// toolCallCommand has the options of sandpit tool call.
type toolCallCommand struct {
	output
}

func newToolCall(a *app) *cobra.Command {
	var o toolCallCommand
	cmd := &cobra.Command{
		Use:   "call [flags] SANDBOX NAME [JSON]",
		Short: "Call a tool in a sandbox of a server",
		Long: `Call a tool in a sandbox of a server. Its input is a JSON object; "-" reads it from standard
input. Files stay; shells, kernels and background programs end with the call. The exit
status is 1 if the tool reports a failure.`,
		Example: `  sandpit tool call work file_list
  sandpit tool call work python_exec '{"code": "6 * 7"}'
  sandpit tool call work file_write - < input.json`,
		Args: wantArgs(2, 3, "the name of a sandbox or of a tool"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return a.completeSandboxes(1)(cmd, args, begun)
			}
			return completeTools(1)(cmd, args, begun)
		},
		RunE: a.withClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *toolCallCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	input, err := readToolInput(a, args[2:])
	if err != nil {
		return err
	}
	result, err := callTool(ctx, a, c, args[0], toolCall{args[1], input})
	if err != nil {
		return err
	}
	return showToolResult(a, o.output, result)
}

func readToolInput(a *app, args []string) ([]byte, error) {
	if len(args) == 0 {
		return nil, nil
	}
	if args[0] != "-" {
		return []byte(args[0]), nil
	}
	return io.ReadAll(io.LimitReader(a.In, maxToolInput+1)) // longer input is rejected like any other
}

// toolCall is the name of a tool and its input.
type toolCall struct {
	name  string
	input []byte
}

// callTool calls a tool in a session that lasts as long as the call.
func callTool(ctx context.Context, a *app, c *client.Client, sandbox string, call toolCall) (result tool.Result, err error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return result, err
	}
	tools, err := tool.New(newCallLog(a, cfg, "tool call").record)
	if err != nil {
		return result, err
	}
	if _, err := tools.Tool(call.name); err != nil {
		return result, err
	}
	id, err := findSandbox(ctx, c, sandbox)
	if err != nil {
		return result, err
	}
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return result, err
	}
	if _, err := ensureRunning(ctx, c, id); err != nil {
		return result, err
	}
	session, err := tool.NewSession(ctx, c.Sandboxes.Open(id).Guest(), tool.SessionOptions{
		ID: string(id), User: s.Spec.User, Preview: previewURLs(c, id),
	})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	return tools.Invoke(ctx, session, call.name, call.input), nil
}

// showToolResult prints the result of a call. The sandbox's output is escaped.
func showToolResult(a *app, o output, r tool.Result) error {
	if o.isJSON() {
		if err := printJSON(a.Out, r); err != nil {
			return err
		}
	} else if r.Problem == nil {
		if _, err := fmt.Fprintln(a.Out, strings.TrimSuffix(escapeLines(r.Text), "\n")); err != nil {
			return err
		}
	}
	switch {
	case r.Problem != nil:
		err := sandpit.Errorf(r.Problem.Code, "%s", r.Problem.Message)
		if r.Problem.Hint != "" {
			err = sandpit.WithHint(err, r.Problem.Hint)
		}
		return err
	case r.Failed:
		return exitStatus(statusNo)
	}
	return nil
}
