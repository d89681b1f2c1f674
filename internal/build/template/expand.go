package template

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// splitWords splits a line into words as a shell does, and expands variables.
func (d *dockerfile) splitWords(line string) ([]string, error) {
	var all []string
	for rest := strings.TrimLeft(line, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		word, after, err := d.nextWord(rest, true)
		if err != nil {
			return nil, err
		}
		all = append(all, word)
		rest = after
	}
	if len(all) == 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "the instruction has no arguments")
	}
	return all, nil
}

// expandVariables expands variables and removes quotes, without splitting.
func (d *dockerfile) expandVariables(line string) (string, error) {
	word, _, err := d.nextWord(line, false)
	return word, err
}

// nextWord returns the first word and the rest of a line. If one is false, it reads to the end.
func (d *dockerfile) nextWord(line string, one bool) (word, rest string, err error) {
	var b strings.Builder
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == ' ' && quote == 0 && one:
			return b.String(), line[i:], nil
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			if quote == '"' && line[i] != '"' && line[i] != '\\' && line[i] != '$' {
				b.WriteByte('\\')
			}
			b.WriteByte(line[i])
		case c == '$' && quote != '\'':
			value, used, err := d.expandVariable(line[i:])
			if err != nil {
				return "", "", err
			}
			b.WriteString(value)
			i += used - 1
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", "", sandpit.Errorf(sandpit.Invalid, "unterminated quote")
	}
	return b.String(), "", nil
}

var variablePattern = pattern.New(`^\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:[-+])([^}$]*))?\})`)

// expandVariable returns the value of the variable at the beginning of text, and its length in
// text. It keeps an unknown variable, which the base may define, for applyStep.
func (d *dockerfile) expandVariable(text string) (value string, length int, err error) {
	m := variablePattern().FindStringSubmatch(text)
	if m == nil {
		if strings.HasPrefix(text, "${") {
			return "", 0, sandpit.Errorf(sandpit.Unsupported, "%q: want ${NAME}, ${NAME:-word} or ${NAME:+word}", text)
		}
		return "$", 1, nil
	}
	name := m[1] + m[2]
	value, known := d.vars[name]
	switch {
	case m[3] == ":-" && value == "":
		value = m[4]
	case m[3] == ":+" && value != "":
		value = m[4]
	case m[3] == ":+":
		value = ""
	case !known:
		value = "${" + name + "}"
	}
	return value, len(m[0]), nil
}

var basePattern = pattern.New(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// defaultPath is the PATH in an image that does not set it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// expandEnv replaces ${NAME} by the value in the image's environment.
func expandEnv(text string, env map[string]string) string {
	return basePattern().ReplaceAllStringFunc(text, func(m string) string {
		name := m[2 : len(m)-1]
		if value, ok := env[name]; ok || name != "PATH" {
			return value
		}
		return defaultPath
	})
}
