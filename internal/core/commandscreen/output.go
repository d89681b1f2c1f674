package commandscreen

import (
	"slices"
	"strings"
)

// outputOf returns the output of a program: known text, or a mark of its origin.
func (s *state) outputOf(name string, args []string, stdin string) string {
	rest := args[1:]
	p := parseOptions(rest, "")
	notKnown := worstTaint(stdin) + string(unknown) + "\n"
	switch name {
	case "echo":
		return s.echoOutput(rest)
	case "printf":
		return s.printfOutput(rest)
	case "cat":
		if len(p.operands) == 0 || p.operands[0] == "-" {
			return stdin
		}
		return s.files.read(p.operands[0])
	case "tee", "sponge", "pv":
		for _, f := range p.operands {
			s.writeFile(f, stdin)
		}
		return stdin
	case "curl", "wget", "fetch", "aria2c", "lynx", "http", "https":
		if file, ok := optionValue(rest, "-o", "-O", "--output", "--output-document"); ok && file != "-" {
			s.writeFile(file, string(fromNet))
		}
		return string(fromNet)
	case "ls":
		return strings.Join(p.operands, "\n") + "\n"
	case "find":
		f := parseFind(rest)
		if f.filtered {
			return notKnown
		}
		return strings.Join(f.starts, "\n") + "\n"
	}
	if isInterpreter(name) && !slices.ContainsFunc(rest, func(a string) bool { return a != "-" }) {
		s.checkInterpreter(args, stdin)
	}
	if isDecoder(name, p, rest) || (slices.Contains([]string{"rev", "tr"}, name) && !strings.ContainsRune(stdin, unknown)) {
		if worstTaint(stdin) == string(fromNet) {
			return stdin
		}
		return string(hidden)
	}
	return notKnown
}

// isDecoder reports whether a program turns an encoding back into text.
func isDecoder(name string, p parsed, args []string) bool {
	switch name {
	case "base64", "base32", "basenc":
		return p.hasOption("dD", "decode")
	case "xxd":
		return p.hasOption("r", "revert")
	case "openssl", "gpg", "gpg2":
		return slices.Contains(args, "-d") || p.hasOption("", "decrypt")
	case "uudecode", "b64decode":
		return true
	}
	return false
}

func isInterpreter(name string) bool {
	name = strings.TrimRight(name, "0123456789.")
	return slices.Contains([]string{"python", "perl", "ruby", "node", "nodejs", "php", "lua", "deno", "bun"}, name)
}

// checkInterpreter checks the origin of a program for an interpreter.
func (s *state) checkInterpreter(args []string, stdin string) {
	switch worstTaint(stdin) {
	case string(hidden):
		s.addFinding(finding{Ask, "hidden-script", "an interpreter runs what is hidden by an encoding"}, args)
	case string(fromNet):
		s.addFinding(finding{Warn, "fetched-script", "an interpreter runs what was just fetched"}, args)
	}
}

func (s *state) echoOutput(args []string) string {
	escapes := false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		escapes = escapes || strings.Contains(args[0], "e")
		args = args[1:]
	}
	text := s.boundText(strings.Join(args, " "))
	if escapes {
		text = decodeEscapes(text)
	}
	return text + "\n"
}

func (s *state) printfOutput(args []string) string {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] == "-v" {
		return ""
	}
	format, values := decodeEscapes(args[0]), args[1:]
	if !strings.Contains(format, "%") {
		return format
	}
	var b strings.Builder
	for b.Len() < maxLength && s.countStep() {
		before := len(values)
		pieces := strings.Split(format, "%")
		b.WriteString(pieces[0])
		for i := 1; i < len(pieces); i++ {
			piece := pieces[i]
			switch {
			case piece == "" && i+1 < len(pieces): // %%
				i++
				b.WriteString("%" + pieces[i])
			case piece != "" && strings.IndexByte("sbcdi", piece[0]) >= 0:
				if len(values) > 0 {
					b.WriteString(values[0])
					values = values[1:]
				}
				b.WriteString(piece[1:])
			default:
				b.WriteString(string(unknown))
			}
		}
		if len(values) == 0 || len(values) == before {
			break
		}
	}
	return s.boundText(b.String())
}
