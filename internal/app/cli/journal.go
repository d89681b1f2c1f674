package cli

import (
	"context"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// journalOf returns the command log of a guest.
func journalOf(guest sandpit.Guest) sandpit.Journal {
	if j, ok := sandpit.As[sandpit.Journal](guest); ok {
		return j
	}
	return noJournal{}
}

// noJournal is for guests without a command log.
type noJournal struct{}

var errNoJournal = sandpit.Errorf(sandpit.Unsupported, "this sandbox has no command log")

func (noJournal) ListCommands(context.Context) ([]sandpit.CommandInfo, error) {
	return nil, errNoJournal
}

func (noJournal) GetCommand(context.Context, string) (sandpit.CommandInfo, error) {
	return sandpit.CommandInfo{}, errNoJournal
}

func (noJournal) Follow(context.Context, string, sandpit.FollowOptions) (sandpit.Followed, error) {
	return sandpit.Followed{}, errNoJournal
}

func (noJournal) ForgetCommand(context.Context, string) error { return errNoJournal }

// findNamedCommand finds the command that the arguments SANDBOX [COMMAND] name.
func findNamedCommand(ctx context.Context, c *client.Client, args []string) (j sandpit.Journal, id string, err error) {
	sandbox, err := findSandbox(ctx, c, args[0])
	if err != nil {
		return nil, "", err
	}
	j = journalOf(c.Sandboxes.Open(sandbox).Guest())
	id, err = findCommand(ctx, j, secondArgument(args))
	return j, id, err
}

// findCommand finds a command by its ID or the beginning of it; "" is the newest.
func findCommand(ctx context.Context, j sandpit.Journal, name string) (string, error) {
	list, err := j.ListCommands(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, i := range list {
		if i.ID == name {
			return i.ID, nil
		}
		if strings.HasPrefix(i.ID, name) {
			found = append(found, i.ID)
		}
	}
	switch {
	case len(found) == 0 && name == "":
		return "", sandpit.Errorf(sandpit.NotFound, "no command was started in this sandbox")
	case len(found) == 0:
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "no command %q", name), "see: sandpit ps -a SANDBOX")
	case len(found) > 1 && name != "":
		return "", sandpit.WithHint(
			sandpit.Errorf(sandpit.Conflict, "%q matches %d commands: %s", name, len(found), strings.Join(found[:min(len(found), 10)], ", ")),
			"use more characters of the ID")
	}
	return found[len(found)-1], nil
}

// followRetryTime is how long logs -f tries to reach a server again.
const followRetryTime = time.Minute

// followWithRetry is Follow, which reconnects if it waits for the end of the command.
func followWithRetry(ctx context.Context, j sandpit.Journal, id string, o sandpit.FollowOptions) (sandpit.CommandInfo, error) {
	var lost time.Time
	for {
		from := o.From
		f, err := j.Follow(ctx, id, o)
		o.From = f.Next
		if err == nil || o.NoWait || sandpit.CodeOf(err) != sandpit.Unavailable {
			return f.Command, err
		}
		if lost.IsZero() || o.From != from {
			lost = time.Now()
		}
		if time.Since(lost) > followRetryTime {
			return f.Command, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return f.Command, ctx.Err()
		}
	}
}
