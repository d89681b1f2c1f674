package toolbox

import (
	"context"
	"net/http"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

const (
	// entrypointID is the name of the session of the sandbox's start command.
	entrypointID = "entrypoint"
	// startTag is the tag of a start command in the command log.
	startTag = "start"
)

// findEntrypoint returns the sandbox's start command in its command log. NotFound: it has none.
func (c *call) findEntrypoint(ctx context.Context) (sandpit.Journal, sandpit.CommandInfo, error) {
	missing := sandpit.Errorf(sandpit.NotFound, "the sandbox has no entrypoint session")
	journal, ok := sandpit.As[sandpit.Journal](c.guest)
	if !ok {
		return nil, sandpit.CommandInfo{}, missing
	}
	list, err := journal.ListCommands(ctx)
	if err != nil {
		return nil, sandpit.CommandInfo{}, err
	}
	i := slices.IndexFunc(list, func(info sandpit.CommandInfo) bool { return info.Tag == startTag })
	if i < 0 {
		return nil, sandpit.CommandInfo{}, missing
	}
	return journal, list[i], nil
}

// getEntrypoint responds with the session of the start command, which is empty without one.
func getEntrypoint(ctx context.Context, c *call) error {
	_, info, err := c.findEntrypoint(ctx)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return c.writeJSON(http.StatusOK, sessionDTO{entrypointID, []commandDTO{}})
	}
	if err != nil {
		return err
	}
	cmd := commandDTO{ID: info.ID}
	if n := len(info.Args); n > 0 {
		cmd.Command = info.Args[n-1]
	}
	if info.Ended {
		cmd.ExitCode = &info.Status.Code
	}
	return c.writeJSON(http.StatusOK, sessionDTO{entrypointID, []commandDTO{cmd}})
}

// readEntrypointLogs responds with the output of the start command, which is empty without one.
func readEntrypointLogs(ctx context.Context, c *call) error {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	record := newOutputLog(maxLog, p.account)
	defer record.release()
	journal, info, err := c.findEntrypoint(ctx)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		record.end()
		return sendLogs(ctx, c, record)
	}
	if err != nil {
		return err
	}
	wait := isUpgrade(c.r) || c.r.URL.Query().Get("follow") == "true"
	copyLog := func(ctx context.Context) error {
		defer record.end()
		_, err := journal.Follow(ctx, info.ID, sandpit.FollowOptions{Stdout: logWriter{record, false}, Stderr: logWriter{record, true}, NoWait: !wait})
		return err
	}
	if !wait {
		if err := copyLog(ctx); err != nil {
			return err
		}
		return sendLogs(ctx, c, record)
	}
	ctx, cancel := context.WithCancel(ctx)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_ = copyLog(ctx) // the reader gets what there is until the end
	}()
	defer func() { cancel(); <-copied }()
	return sendLogs(ctx, c, record)
}

// logWriter writes one stream of a command to a log.
type logWriter struct {
	log    *outputLog
	stderr bool
}

// Write implements io.Writer. It never fails.
func (w logWriter) Write(p []byte) (int, error) {
	w.log.add(w.stderr, p)
	return len(p), nil
}
