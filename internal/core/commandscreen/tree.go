package commandscreen

import (
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// stmts weighs statements that all read stdin, and returns what they write as
// far as it is known.
func (s *state) stmts(list []*syntax.Stmt, stdin string) string {
	var out strings.Builder
	for _, st := range list {
		if !s.step() {
			break
		}
		out.WriteString(s.bounded(s.stmt(st, stdin)))
	}
	return s.bounded(out.String())
}

// bounded cuts a text and counts its bytes.
func (s *state) bounded(text string) string {
	if len(text) > maxLength {
		text = text[:maxLength]
	}
	s.bytes += len(text)
	return text
}

func (s *state) stmt(st *syntax.Stmt, stdin string) (out string) {
	s.depth++
	defer func() { s.depth-- }()
	if !s.step() {
		return ""
	}
	var targets []string
	for _, r := range st.Redirs {
		if in, ok := s.input(r); ok {
			stdin = in
			continue
		}
		targets = append(targets, s.output(r)...)
	}
	if st.Cmd != nil {
		out = s.node(st.Cmd, stdin)
	}
	for _, t := range targets {
		s.writeFile(t, out)
	}
	if len(targets) > 0 {
		return ""
	}
	return out
}

// input returns what a redirection gives to read.
func (s *state) input(r *syntax.Redirect) (text string, ok bool) {
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		if r.Hdoc == nil {
			return "", true
		}
		return strings.Join(s.parts(r.Hdoc.Parts, true), "\n"), true
	case syntax.WordHdoc:
		return strings.Join(s.word(r.Word), " ") + "\n", true
	case syntax.RdrIn:
		return s.readFile(strings.Join(s.word(r.Word), " ")), true
	default:
		return "", false
	}
}

// output weighs a redirection that writes, and returns the files it writes to.
func (s *state) output(r *syntax.Redirect) []string {
	fields := s.word(r.Word)
	if r.Op == syntax.DplIn || r.Op == syntax.DplOut {
		return nil
	}
	for _, f := range fields {
		s.writes(f, []string{r.Op.String(), f})
	}
	return fields
}

// writes weighs writing to a file.
func (s *state) writes(name string, args []string) {
	switch {
	case s.isDevice(name):
		s.add(finding{Deny, "device", "it overwrites a device"}, args)
	case name == "/proc/sysrq-trigger":
		s.add(finding{Warn, "halt", "it stops the machine"}, args)
	}
}

// readFile returns what a file is known to hold.
func (s *state) readFile(name string) string {
	if text, ok := s.files[path.Clean(name)]; ok {
		return text
	}
	return tainted(name) + string(unknown)
}

func (s *state) writeFile(name, text string) { s.files[path.Clean(name)] = s.bounded(text) }

func (s *state) node(cmd syntax.Command, stdin string) string {
	switch c := cmd.(type) {
	case *syntax.CallExpr:
		return s.call(c, stdin)
	case *syntax.BinaryCmd:
		return s.binary(c, stdin)
	case *syntax.Block:
		return s.stmts(c.Stmts, stdin)
	case *syntax.Subshell:
		dir := s.dir
		defer func() { s.dir = dir }()
		return s.stmts(c.Stmts, stdin)
	case *syntax.IfClause:
		var out strings.Builder
		for ; c != nil; c = c.Else {
			s.stmts(c.Cond, stdin)
			out.WriteString(s.stmts(c.Then, stdin))
		}
		return s.bounded(out.String())
	case *syntax.WhileClause:
		s.stmts(c.Cond, stdin)
		return s.stmts(c.Do, stdin)
	case *syntax.ForClause:
		s.loop(c.Loop)
		return s.stmts(c.Do, stdin)
	case *syntax.CaseClause:
		s.word(c.Word)
		var out strings.Builder
		for _, item := range c.Items {
			out.WriteString(s.stmts(item.Stmts, stdin))
		}
		return s.bounded(out.String())
	case *syntax.FuncDecl:
		s.declare(c)
	case *syntax.DeclClause:
		s.assign(c.Args)
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return s.stmt(c.Stmt, stdin)
		}
	case *syntax.CoprocClause:
		return s.stmt(c.Stmt, stdin)
	default: // tests and arithmetic
		s.inside(cmd)
	}
	return ""
}

func (s *state) loop(loop syntax.Loop) {
	iter, ok := loop.(*syntax.WordIter)
	if !ok {
		s.inside(loop)
		return
	}
	if !iter.InPos.IsValid() {
		s.vars[iter.Name.Value] = s.vars["@"]
		return
	}
	s.vars[iter.Name.Value] = s.words(iter.Items)
}

// inside weighs the commands in a node that is otherwise of no interest.
func (s *state) inside(node syntax.Node) {
	syntax.Walk(node, func(n syntax.Node) bool {
		s.nodes++
		if s.nodes > maxNodes {
			s.tooMuch()
			return false
		}
		switch n := n.(type) {
		case *syntax.CmdSubst:
			s.stmts(n.Stmts, "")
			return false
		case *syntax.ProcSubst:
			s.stmts(n.Stmts, "")
			return false
		}
		return true
	})
}

// binary weighs a chain of statements, which may be long.
func (s *state) binary(c *syntax.BinaryCmd, stdin string) string {
	pipe := isPipe(c)
	var out string
	for _, st := range chain(c) {
		if !s.step() {
			break
		}
		if !pipe {
			out = s.bounded(out + s.stmt(st, stdin))
			continue
		}
		dir := s.dir
		out = s.stmt(st, stdin)
		s.dir, stdin = dir, out
	}
	return out
}

func isPipe(c *syntax.BinaryCmd) bool { return c.Op == syntax.Pipe || c.Op == syntax.PipeAll }

// chain returns the statements of a and b and c, or of a | b | c, in order.
func chain(c *syntax.BinaryCmd) (list []*syntax.Stmt) {
	pipe := isPipe(c)
	todo := []*syntax.Stmt{c.Y, c.X}
	for len(todo) > 0 {
		st := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if b, ok := st.Cmd.(*syntax.BinaryCmd); ok && isPipe(b) == pipe && len(st.Redirs) == 0 {
			todo = append(todo, b.Y, b.X)
			continue
		}
		list = append(list, st)
	}
	return list
}

func (s *state) call(c *syntax.CallExpr, stdin string) string {
	s.assign(c.Assigns)
	args := s.words(c.Args)
	if len(args) == 0 {
		return ""
	}
	return s.command(args, stdin)
}

// assign sets variables. Those of one command only are set for good: that errs
// on the careful side.
func (s *state) assign(list []*syntax.Assign) {
	for _, a := range list {
		var values []string
		switch {
		case a.Array != nil:
			for _, e := range a.Array.Elems {
				if e.Value != nil {
					values = append(values, s.word(e.Value)...)
				}
			}
		case a.Value != nil:
			values = s.parts(a.Value.Parts, true)
		case a.Naked:
			continue
		default:
			values = []string{""}
		}
		if a.Name == nil {
			continue
		}
		if old := s.vars[a.Name.Value]; a.Append && a.Array == nil && len(old) == 1 {
			values = s.product(old, values)
		} else if a.Append {
			values = append(old, values...)
		}
		s.vars[a.Name.Value] = values[:min(len(values), maxFields)]
	}
}

// declare weighs a function where it is declared; it is weighed again with its
// arguments where it is called.
func (s *state) declare(f *syntax.FuncDecl) {
	name := f.Name.Value
	s.funcs[name] = f.Body
	b := s.bombIn(name, f.Body)
	if b.pipe || (b.background && b.calls > 1) {
		s.add(bomb(), []string{name + "() {...}"})
	} else if b.background {
		s.add(finding{Warn, "endless", "a function that starts itself again in the background"}, []string{name + "() {...}"})
	}
	dir := s.dir
	defer s.positional(nil)()
	s.stmt(f.Body, string(unknown))
	s.dir = dir
}

// bombSigns are the ways in which a function calls itself.
type bombSigns struct {
	calls            int
	pipe, background bool
}

func (s *state) bombIn(name string, body *syntax.Stmt) (b bombSigns) {
	syntax.Walk(body, func(n syntax.Node) bool {
		s.nodes++
		if s.nodes > maxNodes {
			s.tooMuch()
			return false
		}
		switch n := n.(type) {
		case *syntax.CallExpr:
			if callsItself(n, name) {
				b.calls++
			}
		case *syntax.Stmt:
			b.background = b.background || (n.Background && s.calling(name, n) > 0)
		case *syntax.BinaryCmd:
			b.pipe = b.pipe || (isPipe(n) && s.calling(name, n.X) > 0 && s.calling(name, n.Y) > 0)
		}
		return true
	})
	return b
}

// calling counts the calls of a function below a node.
func (s *state) calling(name string, node syntax.Node) (calls int) {
	syntax.Walk(node, func(n syntax.Node) bool {
		s.nodes++
		if c, ok := n.(*syntax.CallExpr); ok && callsItself(c, name) {
			calls++
		}
		return s.nodes <= maxNodes
	})
	return calls
}

func callsItself(c *syntax.CallExpr, name string) bool {
	return len(c.Args) > 0 && c.Args[0].Lit() == name
}

// positional sets $1 and so on and returns what puts the old ones back. Nil
// arguments are not known.
func (s *state) positional(args []string) (restore func()) {
	names := []string{"@", "*", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	old := map[string][]string{}
	for _, n := range names {
		old[n] = s.vars[n]
		delete(s.vars, n)
	}
	if args != nil {
		s.vars["@"], s.vars["*"] = args, args
		for i, a := range args[:min(len(args), 9)] {
			s.vars[names[i+2]] = []string{a}
		}
	}
	return func() {
		for _, n := range names {
			if delete(s.vars, n); old[n] != nil {
				s.vars[n] = old[n]
			}
		}
	}
}
