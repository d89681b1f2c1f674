package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check whether sandboxes work on this machine",
		Long: `Check whether sandboxes work on this machine, and show what to do if they do not.

It checks common problems and then creates a sandbox. The exit status is 0 if that worked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), a) },
	}
}

func runDoctor(ctx context.Context, a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	for _, f := range configFindings(cfg) {
		a.showFinding(f)
	}
	path, _ := lookupEnv(a.options.Environ, "PATH")
	rules, _ := mountRules(cfg, nil) // only allowed paths can fail
	a.showFinding(findPython(path, rules))
	if !daemon.Examine(ctx, cfg, a.showFinding) {
		return exitStatus(1)
	}
	_, err = fmt.Fprintln(a.Out, "Sandboxes work on this machine.")
	return err
}

// configFindings report which file was read, and which settings and variables have no effect.
func configFindings(cfg config.Config) []registration.Finding {
	const name = "configuration"
	file := registration.Finding{Name: name, Text: "no configuration file; settings are the defaults or come from the environment"}
	if cfg.File != "" {
		file.Text = "read from " + cfg.File
	}
	all := []registration.Finding{file}
	if len(cfg.Ignored) > 0 {
		all = append(all, registration.Finding{
			Name: name, Text: "ignored sections of other programs: [" + strings.Join(cfg.Ignored, "], [") + "]",
			Hint: "sandpit's own sections are in docs/configuration.md",
		})
	}
	for _, text := range cfg.Notices {
		all = append(all, registration.Finding{Name: name, Text: text, Hint: "see docs/configuration.md"})
	}
	return append(all, modelFindings(cfg)...)
}

// findPython checks whether the Python interpreter of this shell is one that the host image
// contains.
func findPython(path string, rules hostpath.Rules) registration.Finding {
	const name = "python3"
	f := registration.Finding{Name: name}
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if isExecutable(filepath.Join(dir, name)) {
			f.Text = "the sandbox uses " + filepath.Join(dir, name)
			return f
		}
	}
	err := explainMissing(sandpit.Errorf(sandpit.NotFound, "not found on this machine"), name, path, rules)
	f.Text, f.Hint = err.Error(), sandpit.HintOf(err)
	return f
}

func (a *app) showFinding(f registration.Finding) {
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
