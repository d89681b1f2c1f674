package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/sandpit-dev/sandpit"
)

//go:generate go run ../../../cmd/sandpit docs markdown ../../../docs/cli

// newDocs returns the command that writes pages about all commands, for the repository and for
// packagers.
func newDocs() *cobra.Command {
	cmd := newGroup("docs", "Write manual pages", `Write pages about all commands into a directory, which is emptied of other pages
of the kind.`, "  sandpit docs man /usr/local/share/man/man1")
	cmd.Hidden = true
	for _, kind := range []struct {
		name, short, ending string
		write               func(*cobra.Command, string) error
	}{
		{"man", "Write manual pages for man", ".1", func(root *cobra.Command, dir string) error {
			return doc.GenManTree(root, &doc.GenManHeader{Title: "SANDPIT", Section: "1", Source: "sandpit", Manual: "sandpit"}, dir)
		}},
		{"markdown", "Write Markdown pages", ".md", doc.GenMarkdownTree},
	} {
		cmd.AddCommand(&cobra.Command{
			Use: kind.name + " DIRECTORY", Short: "Write manual pages",
			Args: wantArgs(1, 1, "a directory"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return writeDocs(cmd.Root(), args[0], kind.ending, kind.write)
			},
		})
	}
	return cmd
}

func writeDocs(root *cobra.Command, dir, ending string, write func(*cobra.Command, string) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // pages are public
		return sandpit.Errorf(sandpit.CodeOf(err), "create the directory: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "sandpit*"+ending))
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: %w", dir, err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return sandpit.Errorf(sandpit.CodeOf(err), "remove an old page: %w", err)
		}
	}
	// The pages must not depend on the day and the machine.
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if err := write(root, dir); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "write the pages: %s", strings.TrimSpace(err.Error()))
	}
	return nil
}
