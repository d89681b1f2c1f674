package cli

import (
	"context"

	"github.com/sandpit-dev/sandpit/agent"
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
		return exitStatus(statusFailed)
	}
	return nil
}
