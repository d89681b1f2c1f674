package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/mattn/go-runewidth"
)

// printTable writes rows of equal length under a heading.
func printTable(w io.Writer, rows [][]string) error { return writeTable(w, rows, nil) }

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
