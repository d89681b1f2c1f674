package daytona_test

import (
	"maps"
	"testing"

	"github.com/sandpit-dev/sandpit/provider/daytona"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

// missingTools are the checks that the toolbox API alone cannot pass.
func missingTools() map[string]string {
	const (
		users   = "the toolbox runs programs and owns files as its own user only"
		connect = "the toolbox sends output from its beginning only, so that nothing can attach"
		watch   = "the toolbox does not report changes of files"
		links   = "the toolbox does not report links"
	)
	all := missing()
	maps.Copy(all, map[string]string{
		"lifecycle/specs that cannot be":                     users,
		"lifecycle/destroyed sandboxes are gone":             watch,
		"crash/follow what ran before":                       connect,
		"cancel/process":                                     connect,
		"cancel/watch":                                       watch,
		"commands/another's program":                         users,
		"commands/cannot be started":                         users,
		"commands/exit codes":                                "a shell reports a signal as an exit code",
		"streams/16 MiB both ways":                           "input goes through a shell, line by line",
		"streams/a slow reader holds back":                   "a sandpit server keeps only the latest output of a session's command",
		"signals/the caller's deadline is not the process's": "a start takes several calls of the toolbox, longer than the deadline of the check",
		"files/owner":                                        users,
		"paths/links":                                        links,
		"paths/links that lead nowhere":                      links,
		"trees/errors":                                       users,
		"trees/members that lead outside":                    "nothing of an invalid stream is unpacked, not even its first members",
		"snapshots/suspend and resume":                       connect,
	})
	for _, name := range []string{"outlive the caller", "input from the next caller", "after the end", "missing process", "many follow one"} {
		all["connect/"+name] = connect
	}
	for _, name := range []string{
		"what happens in a directory", "one directory only", "recursive", "files as they are", "many read one", "closing", "the end of the directory", "errors",
	} {
		all["watch/"+name] = watch
	}
	return all
}

// TestToolbox runs the suite with sandboxes that have no guest.
func TestToolbox(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	runSuite(t, c, func(tb testing.TB) daytona.Options {
		tb.Helper()
		o := c.options(tb)
		o.Toolbox = true
		return o
	}, providertest.Harness{OwnHost: true, Missing: missingTools()})
}
