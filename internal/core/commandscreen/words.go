package commandscreen

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// expandWords returns the arguments that words expand to.
func (s *state) expandWords(list []*syntax.Word) (fields []string) {
	for _, w := range list {
		fields = append(fields, s.expandWord(w)...)
	}
	return fields
}

// expandWord returns the arguments that a word expands to: none, one, or, with braces or a
// variable that may have several values, many.
func (s *state) expandWord(w *syntax.Word) (fields []string) {
	if w == nil || !s.countStep() {
		return nil
	}
	for _, one := range s.expandBracePatterns(w) {
		for _, text := range s.expandParts(one, false) {
			if !strings.ContainsRune(text, split) {
				if text != "" || isQuoted(one) {
					fields = append(fields, text)
				}
				continue
			}
			fields = append(fields, strings.FieldsFunc(text, func(r rune) bool { return r == split })...)
		}
		if len(fields) > maxFields {
			s.noteTooMuch()
			return fields[:maxFields]
		}
	}
	return fields
}

func isQuoted(parts []syntax.WordPart) bool {
	for _, p := range parts {
		switch p.(type) {
		case *syntax.SglQuoted, *syntax.DblQuoted:
			return true
		}
	}
	return false
}

// expandBracePatterns expands {a,b}. A range like {1..9} becomes an unknown text.
func (s *state) expandBracePatterns(w *syntax.Word) [][]syntax.WordPart {
	copied := &syntax.Word{Parts: w.Parts}
	if !syntax.SplitBraces(copied) {
		return [][]syntax.WordPart{w.Parts}
	}
	return s.expandBraces(copied.Parts)
}

func (s *state) expandBraces(parts []syntax.WordPart) [][]syntax.WordPart {
	s.depth++
	defer func() { s.depth-- }()
	list := [][]syntax.WordPart{nil}
	for _, p := range parts {
		b, ok := p.(*syntax.BraceExp)
		if !ok {
			for i := range list {
				list[i] = append(slices.Clip(list[i]), p)
			}
			s.steps += len(list) / 16
			continue
		}
		var elems [][]syntax.WordPart
		if b.Sequence {
			elems = [][]syntax.WordPart{{&syntax.Lit{Value: "0"}}}
		} else {
			for _, e := range b.Elems {
				if !s.countStep() {
					return list
				}
				elems = append(elems, s.expandBraces(e.Parts)...)
			}
		}
		var next [][]syntax.WordPart
		for _, head := range list {
			for _, tail := range elems {
				if len(next) == maxFields || !s.countStep() {
					s.noteTooMuch()
					return next
				}
				next = append(next, append(slices.Clip(head), tail...))
			}
		}
		list = next
	}
	return list
}

// expandParts returns the possible texts of parts of a word together.
func (s *state) expandParts(parts []syntax.WordPart, quoted bool) []string {
	s.depth++
	defer func() { s.depth-- }()
	values := []string{""}
	for _, p := range parts {
		if !s.countStep() {
			break
		}
		values = s.joinProduct(values, s.expandPart(p, quoted))
	}
	return values
}

// joinProduct joins each head with each tail, within maxFields.
func (s *state) joinProduct(heads, tails []string) []string {
	if len(heads) == 1 && heads[0] == "" {
		return tails
	}
	if len(heads)*len(tails) > maxFields {
		s.noteTooMuch()
	}
	var list []string
	for _, h := range heads {
		for _, t := range tails {
			if len(list) == maxFields {
				return list
			}
			list = append(list, s.boundText(h+t))
		}
	}
	return list
}

func (s *state) expandPart(p syntax.WordPart, quoted bool) []string {
	switch p := p.(type) {
	case *syntax.Lit:
		return []string{s.boundText(unescapeLiteral(p.Value, quoted))}
	case *syntax.SglQuoted:
		if p.Dollar {
			return []string{s.boundText(decodeEscapes(p.Value))}
		}
		return []string{s.boundText(p.Value)}
	case *syntax.DblQuoted:
		return s.expandParts(p.Parts, true)
	case *syntax.ParamExp:
		return splitAll(s.expandParam(p), quoted)
	case *syntax.CmdSubst:
		dir := s.dir
		out := strings.TrimRight(s.checkStatements(p.Stmts, ""), "\n")
		s.dir = dir
		return splitAll([]string{out}, quoted)
	case *syntax.ProcSubst:
		name := "/dev/fd/p" + strconv.Itoa(len(s.files))
		s.files[name] = s.checkStatements(p.Stmts, string(unknown))
		return []string{name}
	case *syntax.ArithmExp:
		s.checkInside(p.X)
		return []string{string(isSet)}
	case *syntax.ExtGlob:
		return []string{"*"}
	}
	return []string{string(unknown)}
}

func splitAll(values []string, quoted bool) []string {
	if quoted {
		return values
	}
	list := make([]string, 0, len(values))
	for _, v := range values {
		list = append(list, strings.Map(func(r rune) rune {
			if r == ' ' || r == '\t' || r == '\n' {
				return split
			}
			return r
		}, v))
	}
	return list
}

// expandParam returns the possible values of a variable.
func (s *state) expandParam(p *syntax.ParamExp) []string {
	if p.Length || p.Param == nil {
		return []string{string(isSet)}
	}
	values, known := s.vars.lookup(s.dir, p.Param.Value)
	if p.Excl && known && len(values) == 1 {
		values, known = s.vars.lookup(s.dir, values[0])
	}
	switch {
	case p.Index != nil:
		s.checkInside(p.Index)
	case p.Slice != nil || p.Names != 0:
		return []string{worstTaint(strings.Join(values, "")) + string(unknown)}
	}
	if p.Repl != nil {
		return s.replacePattern(values, p.Repl)
	}
	if p.Exp == nil {
		return values
	}
	return s.applyExpansion(p, values, known)
}

func (s *state) replacePattern(values []string, r *syntax.Replace) (list []string) {
	from, to := s.expandWord(r.Orig), []string{""}
	if r.With != nil {
		to = s.expandParts(r.With.Parts, true)
	}
	if len(from) != 1 || len(to) != 1 || from[0] == "" || hasWild(from[0]) {
		return []string{worstTaint(strings.Join(values, "")) + string(unknown)}
	}
	for _, v := range values {
		if !s.countStep() {
			break
		}
		times := 1
		if r.All {
			times = -1
		}
		if len(v)*(len(to[0])+1) > maxBytes {
			s.noteTooMuch()
			break
		}
		list = append(list, s.boundText(strings.Replace(v, from[0], to[0], times)))
	}
	return list
}

func (s *state) applyExpansion(p *syntax.ParamExp, values []string, known bool) []string {
	word := func() []string {
		if p.Exp.Word == nil {
			return []string{""}
		}
		return s.expandParts(p.Exp.Word.Parts, true)
	}
	empty := len(values) == 0 || (len(values) == 1 && values[0] == "")
	switch p.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		return word()
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
		if known && !empty {
			return values
		}
		return word()
	case syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if !known || empty {
			values = word()
			s.vars[p.Param.Value] = values
		}
		return values
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if known && !empty {
			return values
		}
		return []string{string(isSet)}
	default:
		if p.Exp.Word != nil {
			s.expandWord(p.Exp.Word)
		}
		return []string{worstTaint(strings.Join(values, "")) + string(unknown)}
	}
}

// unescapeLiteral removes the backslashes from a literal.
func unescapeLiteral(text string, quoted bool) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) && (!quoted || strings.IndexByte("$`\"\\\n", text[i+1]) >= 0) {
			i++
			if text[i] == '\n' {
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// decodeEscapes decodes escapes such as \n, \x2f and \057, as in $'...' and printf.
func decodeEscapes(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		i++
		if at := strings.IndexByte("abefnrtv", text[i]); at >= 0 {
			b.WriteByte("\a\b\x1b\f\n\r\t\v"[at])
			continue
		}
		base, most := 8, 3
		switch text[i] {
		case 'x':
			base, most, i = 16, 2, i+1
		case 'u':
			base, most, i = 16, 4, i+1
		case 'U':
			base, most, i = 16, 8, i+1
		case '0':
			most = 4
		}
		end := i
		for end < len(text) && end-i < most && isDigit(text[end], base) {
			end++
		}
		n, err := strconv.ParseUint(text[i:end], base, 32)
		switch {
		case err != nil && i < len(text):
			b.WriteByte(text[i])
		case err != nil:
		case n > isSet:
			b.WriteRune(rune(n)) //nolint:gosec // at most 32 bits; an invalid rune becomes the replacement
			i = end - 1
		default:
			i = end - 1
		}
	}
	return b.String()
}

func isDigit(c byte, base int) bool {
	_, err := strconv.ParseUint(string(rune(c)), base, 8)
	return err == nil
}
