package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// printTable writes rows of equal length under a heading.
func printTable(w io.Writer, rows [][]string) error { return writeTable(w, rows, nil) }

// printDetails writes a table of details for each item, without the details that are empty.
func printDetails[T any](w io.Writer, list []T, toRows func(T) [][]string) error {
	for n, item := range list {
		if n > 0 {
			fmt.Fprintln(w)
		}
		rows := slices.DeleteFunc(toRows(item), func(row []string) bool { return row[1] == "" })
		if err := printTable(w, rows); err != nil {
			return err
		}
	}
	return nil
}

// writeTable writes rows under a heading. Cells are escaped: names of sandboxes and other owners
// must not control the terminal.
func writeTable(w io.Writer, rows [][]string, paint func(row []string, column int) string) error {
	const gap = 3
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(escapeText(cell)))
		}
	}
	var text bytes.Buffer
	for n, row := range rows {
		for i, cell := range row {
			shown := escapeText(cell)
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
