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

// choice is the value of a flag that accepts a few words.
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

// completeValues offers the words.
func (c choice) completeValues(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return c.from, cobra.ShellCompDirectiveNoFileComp
}

// addChoice adds a flag that accepts a few words. Its name may contain its shorthand after a
// comma.
func addChoice(cmd *cobra.Command, value *string, name, usage string, from ...string) {
	c := choice{value, from}
	name, short, _ := strings.Cut(name, ",")
	cmd.Flags().VarP(c, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, c.completeValues) // the flag exists
}

// output is the form in which a command prints its result.
type output struct {
	format string
	quiet  bool
}

// addFlags adds the flags. The text describes -q; "" means that there is no such flag.
func (o *output) addFlags(cmd *cobra.Command, quiet string) {
	o.format = formatTable
	addChoice(cmd, &o.format, "output,o", "`FORMAT`: table, or json for one document", formatTable, formatJSON)
	if quiet != "" {
		cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, quiet)
	}
}

func (o *output) isJSON() bool { return o.format == formatJSON }

// listing is the result of a command in all forms.
type listing struct {
	// document is the result as JSON.
	document any
	// ids are printed with -q.
	ids []string
	// rows are the table; the first is the heading.
	rows  [][]string
	paint func(row []string, column int) string
}

// showListing prints a listing as the flags request.
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
