package commandscreen

import (
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Marks record in a text what is known about its parts. They are characters that cannot be
// in an argument.
const (
	unknown = '\x00' // an unknown text, which may be empty
	fromNet = '\x01' // a fetched text
	hidden  = '\x02' // a decoded text
	split   = '\x03' // where the shell splits a word
	isSet   = '\x04' // an unknown text that is not empty
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

// worstTaint returns the worst mark of origin in a text: hidden, fromNet or "".
func worstTaint(text string) string {
	switch {
	case strings.ContainsRune(text, hidden):
		return string(hidden)
	case strings.ContainsRune(text, fromNet):
		return string(fromNet)
	}
	return ""
}

// state is one check: an interpreter of shell text that runs nothing.
type state struct {
	budget

	policy Policy
	dir    currentDir
	vars   variables
	funcs  map[string]*syntax.Stmt
	files  writtenFiles
	texts  int // of which one is in another
	calls  int // of functions, likewise
}

func newState(p Policy) *state {
	s := &state{policy: p, vars: variables{}, funcs: map[string]*syntax.Stmt{}, files: writtenFiles{}}
	if strings.HasPrefix(p.Dir, "/") {
		s.dir = currentDir(path.Clean(p.Dir))
	}
	s.vars["HOME"] = []string{"~"}
	s.vars["IFS"] = []string{" "}
	return s
}

// checkText checks a text for a shell.
func (s *state) checkText(text string) {
	if s.texts >= maxTexts || len(text) > maxText {
		s.noteTooMuch()
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

// checkScript checks the text that a shell runs, from -c, a pipe or eval.
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
	// An unknown text counts as an unknown variable.
	s.checkText(strings.NewReplacer(string(unknown), "$_", string(fromNet), "$_", string(hidden), "$_", string(isSet), "x").Replace(text))
}

func cleanArgs(args []string) []string {
	list := make([]string, 0, len(args))
	for _, a := range args {
		list = append(list, withoutMarks(a))
	}
	return list
}
