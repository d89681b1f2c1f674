package config

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/sandpit-dev/sandpit"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	// Source is where it is: the file's path, the variable or the flag.
	Source string
	// Line is the line in the file, from 1; 0 if it is no file or not known.
	Line int
	// Key is the setting or section meant; "" if it is not about one.
	Key Key
	// Text says what is wrong and what to do, in one line.
	Text string
}

// String returns the problem with its place, in one line.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Source)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, ": %s", p.Key)
	}
	fmt.Fprintf(&b, ": %s", p.Text)
	return b.String()
}

// Problems is everything that is wrong with the configuration: first the file
// from top to bottom, then the environment by name, then the flags as given.
// Its code is sandpit.Invalid.
type Problems struct {
	List []Problem
}

// Error returns one line for a single problem, else a heading and one line
// each.
func (p *Problems) Error() string {
	if len(p.List) == 1 {
		return p.List[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems in the configuration:", len(p.List))
	for _, one := range p.List {
		fmt.Fprintf(&b, "\n  %s", one)
	}
	return b.String()
}

// Unwrap returns sandpit.Invalid, so that sandpit.CodeOf finds it.
func (p *Problems) Unwrap() error { return sandpit.Invalid }

// addProblem keeps one problem on one line, whatever is in the names it repeats.
func (p *Problems) addProblem(one Problem) {
	one.Source = strings.Map(toVisible, one.Source)
	one.Text = strings.Map(toVisible, one.Text)
	p.List = append(p.List, one)
}

func toVisible(r rune) rune {
	if unicode.IsControl(r) {
		return '?'
	}
	return r
}

// errorOrNil returns p, or nil if there is nothing in it.
func (p *Problems) errorOrNil() error {
	if len(p.List) == 0 {
		return nil
	}
	return p
}

// toPrintable keeps a name that somebody else chose from breaking the line it is
// shown on.
func toPrintable(name string) string {
	if hasControl(name) || len(name) > 80 {
		return quoteText(name)
	}
	return name
}
