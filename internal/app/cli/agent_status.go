package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Exit statuses of sandpit agent, besides those of other commands.
const (
	statusMaxSteps = 10
	statusBudget   = 11
	statusStuck    = 12
)

// agentStatuses describes them in the help.
const agentStatuses = `1 the model reports that it cannot do it,
10 --max-steps is reached, 11 the budget is spent, 12 the model repeats itself`

// toAgentStatus returns the exit status for the outcome of the last task.
func toAgentStatus(ctx context.Context, o agent.Outcome) error {
	switch o.Reason { //nolint:exhaustive // finished is the status 0; the command has returned an error
	case agent.Failed:
		return exitStatus(statusNo)
	case agent.MaxSteps:
		return exitStatus(statusMaxSteps)
	case agent.BudgetSpent:
		return exitStatus(statusBudget)
	case agent.Stuck:
		return exitStatus(statusStuck)
	case agent.Interrupted:
		if status, ok := signalStatus(ctx); ok {
			return status
		}
		return toPipeStatus(context.Cause(ctx))
	}
	return nil
}

// toTaskError gives the error of a task its exit status. Hints about the key of a sandpit server do not apply
// to that of a model.
func (a *app) toTaskError(ctx context.Context, err error) error {
	if _, ofVendor := errors.AsType[*model.APIError](err); ofVendor {
		return verbError{err}
	}
	return a.toVerbError(ctx, err)
}

// surviveBrokenPipe has writes to a pipe without a reader fail, in place of ending this program before the
// sandbox is released. The result ends that.
func surviveBrokenPipe() (end func()) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGPIPE)
	return func() { signal.Stop(got) }
}

// toPipeStatus returns the status that other programs have without a reader of their output, or the error.
func toPipeStatus(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return exitStatus(statusSignal + int(syscall.SIGPIPE))
	}
	return err
}
