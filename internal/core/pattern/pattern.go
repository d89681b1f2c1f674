// Package pattern compiles regular expressions when they are used for the first time. Each process
// of a sandbox is the same program, uses few of its expressions, and would otherwise hold all.
package pattern

import (
	"regexp"
	"sync"
)

// New returns a function that returns the compiled expression. It may be called concurrently, and
// panics if the expression is not valid.
func New(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
