package cli

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// hasColours reports whether the output is a terminal with colors.
func (a *app) hasColours() bool {
	if v, _ := lookupEnv(a.options.Environ, "NO_COLOR"); v != "" {
		return false
	}
	name, _ := lookupEnv(a.options.Environ, "TERM")
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

// paintState returns the color of a cell with a state.
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
