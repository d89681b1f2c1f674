package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
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

// complete offers the values.
func (c choice) complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return c.from, cobra.ShellCompDirectiveNoFileComp
}

// addChoice adds a flag that has one of a few values. Its name may have a letter behind
// a comma.
func addChoice(cmd *cobra.Command, value *string, name, usage string, from ...string) {
	c := choice{value, from}
	name, short, _ := strings.Cut(name, ",")
	cmd.Flags().VarP(c, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, c.complete) // fails only for a flag that is not there
}

// output says in which form a command tells what it found.
type output struct {
	format string
	quiet  bool
}

// add adds the flags. What -q leaves is the caller's to say; "" has no such flag.
func (o *output) add(cmd *cobra.Command, quiet string) {
	o.format = formatTable
	addChoice(cmd, &o.format, "output,o", "`FORMAT`: table for people, or json, which is one document", formatTable, formatJSON)
	if quiet != "" {
		cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, quiet)
	}
}

func (o *output) json() bool { return o.format == formatJSON }

// listing is what a command found, in all its forms.
type listing struct {
	document any        // as JSON
	ids      []string   // for -q
	rows     [][]string // the first is the heading
	paint    func(row []string, column int) string
}

// show prints a listing as the flags say.
func (a *app) show(o output, l listing) error {
	switch {
	case o.quiet:
		for _, id := range l.ids {
			if _, err := fmt.Fprintln(a.Out, safe(id)); err != nil {
				return err
			}
		}
		return nil
	case o.json():
		return printJSON(a.Out, l.document)
	}
	paint := l.paint
	if !a.colours() {
		paint = nil
	}
	return layTable(a.Out, l.rows, paint)
}

// colours reports whether the output is for somebody who sees colours.
func (a *app) colours() bool {
	if v, _ := lookup(a.options.Environ, "NO_COLOR"); v != "" {
		return false
	}
	name, _ := lookup(a.options.Environ, "TERM")
	_, ok := terminalOf(a.Out)
	return ok && name != "" && name != "dumb"
}

// The colours there are.
const (
	colourNone   = ""
	colourGreen  = "\x1b[32m"
	colourYellow = "\x1b[33m"
	colourRed    = "\x1b[31m"
	colourFaint  = "\x1b[2m"
	colourOff    = "\x1b[0m"
)

// paintState colours the states of sandboxes, wherever they stand.
func paintState(row []string, column int) string {
	switch state, _, _ := strings.Cut(row[column], " "); sandpit.State(state) {
	case sandpit.StateRunning:
		return colourGreen
	case sandpit.StateError:
		return colourRed
	case sandpit.StatePaused, sandpit.StateStopped, sandpit.StateArchived, sandpit.StateDeleted:
		return colourFaint
	default:
		if sandpit.State(state).Valid() {
			return colourYellow
		}
		return colourNone
	}
}

// printTable writes rows of equal length under a heading.
func printTable(w io.Writer, rows [][]string) error { return layTable(w, rows, nil) }

// layTable writes rows under a heading. Whatever is in a cell stays in it: what a
// sandbox or somebody else has named cannot talk to the terminal.
func layTable(w io.Writer, rows [][]string, paint func(row []string, column int) string) error {
	const gap = 3
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(safe(cell)))
		}
	}
	var text bytes.Buffer
	for n, row := range rows {
		for i, cell := range row {
			shown := safe(cell)
			space := widths[i] + gap - runewidth.StringWidth(shown)
			if paint != nil && n > 0 {
				if colour := paint(row, i); colour != colourNone {
					shown = colour + shown + colourOff
				}
			}
			text.WriteString(shown)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", space))
			}
		}
		text.WriteByte('\n')
	}
	_, err := text.WriteTo(w)
	return err
}

// safe makes visible what a terminal or an eye would take for something else:
// control characters, invisible and reordering ones, and what is not UTF-8.
func safe(text string) string { return escape(text, false) }

// safeLines is safe for text of several lines.
func safeLines(text string) string { return escape(text, true) }

func escape(text string, lines bool) string {
	harmless := func(r rune) bool { return strconv.IsPrint(r) || lines && (r == '\n' || r == '\t') }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !harmless(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case harmless(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// showWhen says when something will be, or was.
func showWhen(at time.Time) string {
	const day = 24 * time.Hour
	left := time.Until(at)
	switch {
	case at.IsZero():
		return "never"
	case left <= 0:
		return showAge(at)
	case left < time.Minute:
		return fmt.Sprintf("in %d s", int(left/time.Second)+1)
	case left < 2*time.Hour:
		return fmt.Sprintf("in %d min", int(left.Round(time.Minute)/time.Minute))
	case left < 2*day:
		return fmt.Sprintf("in %d h", int(left.Round(time.Hour)/time.Hour))
	case left < 60*day:
		return fmt.Sprintf("in %d days", int(left.Round(day)/day))
	default:
		return at.Format(time.DateOnly)
	}
}

// showLabels writes labels as they are given, in order.
func showLabels(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for name, value := range labels {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
