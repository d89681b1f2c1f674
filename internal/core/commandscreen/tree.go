package commandscreen

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// checkStatements checks statements that all read stdin, and returns their output as far as
// it is known.
func (s *state) checkStatements(list []*syntax.Stmt, stdin string) string {
	var out strings.Builder
	for _, st := range list {
		if !s.countStep() {
			break
		}
		out.WriteString(s.boundText(s.checkStatement(st, stdin)))
	}
	return s.boundText(out.String())
}

func (s *state) checkStatement(st *syntax.Stmt, stdin string) (out string) {
	s.depth++
	defer func() { s.depth-- }()
	if !s.countStep() {
		return ""
	}
	var targets []string
	for _, r := range st.Redirs {
		if in, ok := s.readRedirect(r); ok {
			stdin = in
			continue
		}
		targets = append(targets, s.checkOutput(r)...)
	}
	if st.Cmd != nil {
		out = s.checkNode(st.Cmd, stdin)
	}
	for _, t := range targets {
		s.writeFile(t, out)
	}
	if len(targets) > 0 {
		return ""
	}
	return out
}

// readRedirect returns the input that a redirection provides.
func (s *state) readRedirect(r *syntax.Redirect) (text string, ok bool) {
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		if r.Hdoc == nil {
			return "", true
		}
		return strings.Join(s.expandParts(r.Hdoc.Parts, true), "\n"), true
	case syntax.WordHdoc:
		return strings.Join(s.expandWord(r.Word), " ") + "\n", true
	case syntax.RdrIn:
		return s.files.read(strings.Join(s.expandWord(r.Word), " ")), true
	default:
		return "", false
	}
}

// checkOutput checks a redirection that writes, and returns the files that it writes.
func (s *state) checkOutput(r *syntax.Redirect) []string {
	fields := s.expandWord(r.Word)
	if r.Op == syntax.DplIn || r.Op == syntax.DplOut {
		return nil
	}
	for _, f := range fields {
		s.rules().checkWrites(f, []string{r.Op.String(), f})
	}
	return fields
}

// writeFile records the content of a file, as far as it is known.
func (s *state) writeFile(name, text string) { s.files.write(name, s.boundText(text)) }

func (s *state) checkNode(cmd syntax.Command, stdin string) string {
	switch c := cmd.(type) {
	case *syntax.CallExpr:
		return s.checkCall(c, stdin)
	case *syntax.BinaryCmd:
		return s.checkBinary(c, stdin)
	case *syntax.Block:
		return s.checkStatements(c.Stmts, stdin)
	case *syntax.Subshell:
		dir := s.dir
		defer func() { s.dir = dir }()
		return s.checkStatements(c.Stmts, stdin)
	case *syntax.IfClause:
		var out strings.Builder
		for ; c != nil; c = c.Else {
			s.checkStatements(c.Cond, stdin)
			out.WriteString(s.checkStatements(c.Then, stdin))
		}
		return s.boundText(out.String())
	case *syntax.WhileClause:
		s.checkStatements(c.Cond, stdin)
		return s.checkStatements(c.Do, stdin)
	case *syntax.ForClause:
		s.checkLoop(c.Loop)
		return s.checkStatements(c.Do, stdin)
	case *syntax.CaseClause:
		s.expandWord(c.Word)
		var out strings.Builder
		for _, item := range c.Items {
			out.WriteString(s.checkStatements(item.Stmts, stdin))
		}
		return s.boundText(out.String())
	case *syntax.FuncDecl:
		s.declareFunction(c)
	case *syntax.DeclClause:
		s.assignVariables(c.Args)
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return s.checkStatement(c.Stmt, stdin)
		}
	case *syntax.CoprocClause:
		return s.checkStatement(c.Stmt, stdin)
	default: // tests and arithmetic
		s.checkInside(cmd)
	}
	return ""
}

func (s *state) checkLoop(loop syntax.Loop) {
	iter, ok := loop.(*syntax.WordIter)
	if !ok {
		s.checkInside(loop)
		return
	}
	if !iter.InPos.IsValid() {
		s.vars[iter.Name.Value] = s.vars["@"]
		return
	}
	s.vars[iter.Name.Value] = s.expandWords(iter.Items)
}

// checkInside checks only the commands below a node.
func (s *state) checkInside(node syntax.Node) {
	s.walkNodes(node, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst:
			s.checkStatements(n.Stmts, "")
			return false
		case *syntax.ProcSubst:
			s.checkStatements(n.Stmts, "")
			return false
		}
		return true
	})
}

// checkBinary checks a chain of statements, which may be long.
func (s *state) checkBinary(c *syntax.BinaryCmd, stdin string) string {
	pipe := isPipe(c)
	var out string
	for _, st := range flattenChain(c) {
		if !s.countStep() {
			break
		}
		if !pipe {
			out = s.boundText(out + s.checkStatement(st, stdin))
			continue
		}
		dir := s.dir
		out = s.checkStatement(st, stdin)
		s.dir, stdin = dir, out
	}
	return out
}

func isPipe(c *syntax.BinaryCmd) bool { return c.Op == syntax.Pipe || c.Op == syntax.PipeAll }

// flattenChain returns the statements of a and b and c, or of a | b | c, in order.
func flattenChain(c *syntax.BinaryCmd) (list []*syntax.Stmt) {
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

func (s *state) checkCall(c *syntax.CallExpr, stdin string) string {
	s.assignVariables(c.Assigns)
	args := s.expandWords(c.Args)
	if len(args) == 0 {
		return ""
	}
	return s.checkCommand(args, stdin)
}

// assignVariables sets variables. Variables of a single command stay set too, which is the
// stricter choice.
func (s *state) assignVariables(list []*syntax.Assign) {
	for _, a := range list {
		var values []string
		switch {
		case a.Array != nil:
			for _, e := range a.Array.Elems {
				if e.Value != nil {
					values = append(values, s.expandWord(e.Value)...)
				}
			}
		case a.Value != nil:
			values = s.expandParts(a.Value.Parts, true)
		case a.Naked:
			continue
		default:
			values = []string{""}
		}
		if a.Name == nil {
			continue
		}
		if old := s.vars[a.Name.Value]; a.Append && a.Array == nil && len(old) == 1 {
			values = s.joinProduct(old, values)
		} else if a.Append {
			values = append(old, values...)
		}
		s.vars[a.Name.Value] = values[:min(len(values), maxFields)]
	}
}

// declareFunction checks a function at its declaration. Each call checks it again with its
// arguments.
func (s *state) declareFunction(f *syntax.FuncDecl) {
	name := f.Name.Value
	s.funcs[name] = f.Body
	b := findBomb(&s.budget, name, f.Body)
	if b.pipe || (b.background && b.calls > 1) {
		s.addFinding(forkBombFinding(), []string{name + "() {...}"})
	} else if b.background {
		s.addFinding(finding{Warn, "endless", "a function that starts itself again in the background"}, []string{name + "() {...}"})
	}
	dir := s.dir
	defer s.vars.setPositional(nil)()
	s.checkStatement(f.Body, string(unknown))
	s.dir = dir
}
