package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Output formats.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// choice is a flag with a few values.
type choice struct {
	value *string
	from  []string
}

// String implements pflag.Value.
func (c choice) String() string { return *c.value }

// Set implements pflag.Value.
func (c choice) Set(text string) error {
	if !slices.Contains(c.from, text) {
		return fmt.Errorf("want one of %s", strings.Join(c.from, ", "))
	}
	*c.value = text
	return nil
}

// Type implements pflag.Value.
func (c choice) Type() string { return strings.Join(c.from, "|") }

// completeValues offers the values.
func (c choice) completeValues(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return c.from, cobra.ShellCompDirectiveNoFileComp
}

// addChoice adds a flag that has one of a few values. Its name may have a letter behind
// a comma.
func addChoice(cmd *cobra.Command, value *string, name, usage string, from ...string) {
	c := choice{value, from}
	name, short, _ := strings.Cut(name, ",")
	cmd.Flags().VarP(c, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, c.completeValues) // fails only for a flag that is not there
}

// output says in which form a command tells what it found.
type output struct {
	format string
	quiet  bool
}

// addFlags adds the flags. What -q leaves is the caller's to say; "" has no such flag.
func (o *output) addFlags(cmd *cobra.Command, quiet string) {
	o.format = formatTable
	addChoice(cmd, &o.format, "output,o", "`FORMAT`: table for people, or json, which is one document", formatTable, formatJSON)
	if quiet != "" {
		cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, quiet)
	}
}

func (o *output) isJSON() bool { return o.format == formatJSON }

// listing is what a command found, in all its forms.
type listing struct {
	document any        // as JSON
	ids      []string   // for -q
	rows     [][]string // the first is the heading
	paint    func(row []string, column int) string
}

// showListing prints a listing as the flags say.
func (a *app) showListing(o output, l listing) error {
	switch {
	case o.quiet:
		for _, id := range l.ids {
			if _, err := fmt.Fprintln(a.Out, escapeText(id)); err != nil {
				return err
			}
		}
		return nil
	case o.isJSON():
		return printJSON(a.Out, l.document)
	}
	paint := l.paint
	if !a.hasColours() {
		paint = nil
	}
	return writeTable(a.Out, l.rows, paint)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
