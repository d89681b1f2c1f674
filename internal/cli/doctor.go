package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/daemon"
	"github.com/sandpit-dev/sandpit/internal/hostpath"
)

func (a *app) newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether sandboxes work on this machine, and what to do if not",
		Long: `Find out whether sandboxes work on this machine, and what to do if not.

It looks at what usually stands in the way, and then makes a real sandbox. The
exit status is 0 if that worked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	path, _ := lookup(a.options.Environ, "PATH")
	rules, _ := mountRules(cfg, nil) // fails for allowed paths only
	a.showFinding(findPython(path, rules))
	if !daemon.Examine(ctx, cfg, a.showFinding) {
		return exitStatus(1)
	}
	_, err = fmt.Fprintln(a.Out, "Sandboxes work on this machine.")
	return err
}

// findPython tells whether the interpreter that this shell finds is one that the
// host image brings in.
func findPython(path string, rules hostpath.Rules) daemon.Finding {
	const name = "python3"
	f := daemon.Finding{Name: name}
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if isExecutable(filepath.Join(dir, name)) {
			f.Text = "the sandbox's is " + filepath.Join(dir, name)
			return f
		}
	}
	err := explainMissing(sandpit.Errorf(sandpit.NotFound, "this machine has none"), name, path, rules)
	f.Text, f.Hint = err.Error(), sandpit.HintOf(err)
	return f
}

func (a *app) showFinding(f daemon.Finding) {
	mark := "ok  "
	switch {
	case f.Failed:
		mark = "FAIL"
	case f.Hint != "":
		mark = "note"
	}
	fmt.Fprintf(a.Out, "%s  %-16s %s\n", mark, f.Name, f.Text)
	if f.Hint != "" {
		fmt.Fprintf(a.Out, "      %s\n", strings.ReplaceAll(f.Hint, "\n", "\n      "))
	}
}
