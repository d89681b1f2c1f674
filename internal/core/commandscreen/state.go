package commandscreen

import (
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// What a text is known to hold is kept in the text itself, as characters that
// cannot be in an argument.
const (
	unknown = '\x00' // something that is not known
	fromNet = '\x01' // something that was fetched
	hidden  = '\x02' // something that was decoded
	split   = '\x03' // where the shell splits a word
	isSet   = '\x04' // something not known, but not empty
)

func isMark(r rune) bool { return r <= isSet }

func withoutMarks(text string) string {
	if !strings.ContainsFunc(text, isMark) {
		return text
	}
	return strings.Map(func(r rune) rune {
		if isMark(r) {
			return -1
		}
		return r
	}, text)
}

// worstTaint returns the worst mark in a text that came from elsewhere, or "".
func worstTaint(text string) string {
	switch {
	case strings.ContainsRune(text, hidden):
		return string(hidden)
	case strings.ContainsRune(text, fromNet):
		return string(fromNet)
	}
	return ""
}

// Bounds. A command beyond them is not weighed further.
const (
	maxParsed   = 128 << 10 // bytes; the most one argument of a process can have
	maxText     = 1 << 20   // bytes that are looked at word by word
	maxOpeners  = 4096      // parentheses and the like, which bounds recursion
	maxSteps    = 20_000    // commands and words of one check
	maxDepth    = 200       // of commands in commands
	maxTexts    = 10        // of texts in texts
	maxFields   = 256       // one word becomes
	maxLength   = 64 << 10  // bytes of one word
	maxBytes    = 8 << 20   // bytes of all words of one check
	maxFunction = 8         // of calls in calls
	maxNodes    = 500_000   // of the syntax tree, looked at more than once
)

// state is one check.
type state struct {
	policy  Policy
	verdict Verdict
	dir     string // the current directory, "" if not known
	vars    map[string][]string
	funcs   map[string]*syntax.Stmt
	files   map[string]string // written by the same text
	depth   int
	texts   int
	calls   int
	steps   int
	bytes   int
	nodes   int
}

func newState(p Policy) *state {
	s := &state{policy: p, vars: map[string][]string{}, funcs: map[string]*syntax.Stmt{}, files: map[string]string{}}
	if strings.HasPrefix(p.Dir, "/") {
		s.dir = path.Clean(p.Dir)
	}
	s.vars["HOME"] = []string{"~"}
	s.vars["IFS"] = []string{" "}
	return s
}

// countStep counts work and reports whether there may be more of it.
func (s *state) countStep() bool {
	s.steps++
	if s.steps <= maxSteps && s.bytes <= maxBytes && s.depth <= maxDepth {
		return true
	}
	s.tooMuch()
	return false
}

func (s *state) tooMuch() {
	s.verdict.Unclear = true
	s.addFinding(finding{Ask, "too-involved", "it is too long or too involved to be weighed"}, []string{"..."})
}

// checkText weighs a text for a shell.
func (s *state) checkText(text string) {
	if s.texts >= maxTexts || len(text) > maxText {
		s.tooMuch()
		return
	}
	s.texts++
	defer func() { s.texts-- }()
	text = withoutMarks(text)
	s.bytes += len(text)
	if !s.countStep() {
		return
	}
	file, ok := parseShell(text)
	if !ok {
		s.checkUnparsed(text)
		return
	}
	s.checkStatements(file.Stmts, "")
}

func parseShell(text string) (*syntax.File, bool) {
	openers := 0
	for i := range len(text) {
		switch text[i] {
		case '(', '{', '[', '`':
			openers++
		}
	}
	if len(text) > maxParsed || openers > maxOpeners {
		return nil, false
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	return file, err == nil
}

// checkScript weighs what a shell is given to run: by -c, by a pipe, by eval.
func (s *state) checkScript(text string, piped bool, args []string) {
	switch worstTaint(text) {
	case string(hidden):
		s.addFinding(finding{Ask, "hidden-script", "a shell runs what is hidden by an encoding"}, args)
	case string(fromNet):
		s.addFinding(finding{Warn, "fetched-script", "a shell runs what was just fetched"}, args)
	}
	if strings.Trim(text, string(unknown)+" \n") == "" {
		if piped && text != "" {
			s.addFinding(finding{Warn, "piped-script", "a shell runs what another program writes"}, args)
		}
		return
	}
	// What is not known is like a variable that is not.
	s.checkText(strings.NewReplacer(string(unknown), "$_", string(fromNet), "$_", string(hidden), "$_", string(isSet), "x").Replace(text))
}

func cleanArgs(args []string) []string {
	list := make([]string, 0, len(args))
	for _, a := range args {
		list = append(list, withoutMarks(a))
	}
	return list
}
