package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
)

// maxPrompt bounds a task, in bytes.
const maxPrompt = 1 << 20

// agentInput reads a person's lines from a terminal.
type agentInput struct {
	a *app
	// terminal is true if standard input is a terminal, interactive if tasks come from it.
	terminal, interactive bool

	lines chan inputLine // nil until the first read
}

type inputLine struct {
	text string
	err  error
}

func newAgentInput(a *app) *agentInput {
	_, terminal := terminalOf(a.In)
	return &agentInput{a: a, terminal: terminal}
}

// readLine shows a prompt and returns a line. It returns when ctx ends, although reading from a
// terminal cannot be interrupted: the program ends then.
func (in *agentInput) readLine(ctx context.Context, prompt string) (string, error) {
	if in.lines == nil {
		in.lines = make(chan inputLine)
		go func() {
			r := bufio.NewReader(in.a.In)
			for {
				text, err := r.ReadString('\n')
				if text != "" && errors.Is(err, io.EOF) {
					in.lines <- inputLine{text: text}
				}
				if in.lines <- (inputLine{text, err}); err != nil {
					return
				}
			}
		}()
	}
	fmt.Fprint(in.a.Err, prompt)
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case line := <-in.lines:
		return strings.TrimSpace(line.text), line.err
	}
}

// asker returns the function that asks a person, or nil if there is no terminal.
func (in *agentInput) asker() func(context.Context, string) (string, error) {
	if !in.terminal {
		return nil
	}
	return func(ctx context.Context, question string) (string, error) {
		answer, err := in.readLine(ctx, "\nThe agent asks: "+escapeLines(question)+"\n> ")
		if errors.Is(err, io.EOF) {
			return "", sandpit.Errorf(sandpit.Unavailable, "no person answers")
		}
		return answer, err
	}
}

// agentTasks are the tasks of sandpit agent.
type agentTasks struct {
	in    *agentInput // nil: only the first one
	first *string
}

// readTasks returns the tasks: --prompt, standard input, or lines of a terminal. It fails for an empty
// task, before anything is created.
func (o *agentCommand) readTasks(cmd *cobra.Command, a *app, in *agentInput) (*agentTasks, error) {
	prompt := o.prompt
	switch {
	case cmd.Flags().Changed("prompt"):
	case o.resume != "":
		return &agentTasks{first: new(string)}, nil // to continue
	case in.terminal:
		in.interactive = true
		return &agentTasks{in: in}, nil
	default:
		data, err := io.ReadAll(io.LimitReader(a.In, maxPrompt+1))
		if err != nil {
			return nil, fmt.Errorf("read the task: %w", err)
		}
		prompt = string(data)
	}
	if len(prompt) > maxPrompt {
		return nil, sandpit.Errorf(sandpit.Invalid, "the task has more than %d bytes", maxPrompt)
	}
	if strings.TrimSpace(prompt) == "" {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the task is empty"), "give one: sandpit agent --prompt 'TEXT'")
	}
	return &agentTasks{first: &prompt}, nil
}

// next returns the next task, and whether there is one.
func (t *agentTasks) next(ctx context.Context) (task string, ok bool, err error) {
	if t.first != nil {
		task, t.first = *t.first, nil
		return task, true, nil
	}
	if t.in == nil {
		return "", false, nil
	}
	for {
		line, err := t.in.readLine(ctx, "\nTask (exit to end): ")
		switch {
		case errors.Is(err, io.EOF):
			return "", false, nil
		case err != nil:
			return "", false, err
		}
		switch strings.ToLower(line) {
		case "":
			continue
		case "exit", "quit", "q":
			return "", false, nil
		}
		return line, true, nil
	}
}
