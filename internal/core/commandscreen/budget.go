package commandscreen

import "mvdan.cc/sh/v3/syntax"

// Bounds of one check. A command beyond them is not checked further.
const (
	maxParsed   = 128 << 10 // bytes; the most one argument of a process can have
	maxText     = 1 << 20   // bytes that are checked word by word
	maxOpeners  = 4096      // opening brackets and backquotes, which bounds recursion
	maxSteps    = 20_000    // commands and words of one check
	maxDepth    = 200       // of commands in commands
	maxTexts    = 10        // of texts in texts
	maxFields   = 256       // that one word expands to
	maxLength   = 64 << 10  // bytes of one word
	maxBytes    = 8 << 20   // bytes of all words of one check
	maxFunction = 8         // of calls in calls
	maxNodes    = 500_000   // of the syntax tree, counted at each visit
)

// budget is what one check has used of its bounds. Exceeding one is a finding.
type budget struct {
	findings

	depth int
	steps int
	bytes int
	nodes int
}

// countStep counts work and reports whether the bounds allow more.
func (b *budget) countStep() bool {
	b.steps++
	if b.steps <= maxSteps && b.bytes <= maxBytes && b.depth <= maxDepth {
		return true
	}
	b.noteTooMuch()
	return false
}

// boundText cuts a text and counts its bytes.
func (b *budget) boundText(text string) string {
	if len(text) > maxLength {
		text = text[:maxLength]
	}
	b.bytes += len(text)
	return text
}

// walkNodes visits a node and those below it for which visit returns true, until there are too many.
func (b *budget) walkNodes(node syntax.Node, visit func(syntax.Node) bool) {
	syntax.Walk(node, func(n syntax.Node) bool {
		b.nodes++
		if b.nodes > maxNodes {
			b.noteTooMuch()
			return false
		}
		return visit(n)
	})
}
