package shell

import (
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// quickCheck returns a command for bash that succeeds if text can be parsed, without another
// process and without running any of it: text becomes the body of a function. It may fail for
// a valid text, but never succeeds for an invalid one: the body is enclosed in a construct
// whose end is not in text. It is "" if there is no such construct, or if text could end
// bash.
func quickCheck(text string) string {
	if !safeSubstitutions(text) {
		return ""
	}
	for _, e := range []struct {
		begin, end string
		not        []string
	}{
		{"{", "}", []string{"}"}},
		{"while :; do", "done", []string{"done"}},
		{"case _ in _)", "esac", []string{"esac", ";;", ";&"}},
		{"(", ")", []string{")"}},
		{"if :; then", "fi", []string{"fi", "else", "elif"}},
	} {
		if !containsAny(text, e.not) {
			body := "__sandpit() " + e.begin + " :\n" + text + end + e.end
			return `\command \eval ` + quoteASCII(body) + ` && \unset -f __sandpit || ` + resetParser
		}
	}
	return ""
}

// resetParser is a syntax error. After an error inside [[ or a similar construct, bash parses
// the next text as if it were still inside, until another error. With command, the error does
// not end a shell in POSIX mode.
const resetParser = `\command \eval ')'`

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// bash parses command substitutions and the words of arrays at once. At an error in them, bash
// 5.2 ends, or continues in the middle of the text. simpleCommands and simpleSum match texts
// that are certainly valid.
var (
	substitution   = pattern.New(`[$<>=]\(`)
	simpleSum      = pattern.New(`^=\( *\)|^\$\(\([\w $+*/%<>=!&|?:,^~-]*\)\)`)
	simpleCommands = pattern.New(`^[$<>=]\(([\w ./:=,@%+~^*"$|;&-]*)\)`)
	simpleCommand  = pattern.New(`^ *([\w./:=,@%+~^*-]+)( +(?:[\w./:=,@%+~^*-]|\$\w|"[\w ./:=,@%+~^*-]*(?:\$\w[\w ./:=,@%+~^*-]*)*")+)* *$`)
	connectives    = pattern.New(`\|\||&&|[|;]`)
	reserved       = pattern.New(`^(?:if|then|elif|else|fi|time|for|in|until|while|do|done|case|esac|coproc|select|function)$`)
)

// safeSubstitutions reports whether each substitution in text, and each text that resembles
// one, has valid commands.
func safeSubstitutions(text string) bool {
	for _, at := range substitution().FindAllStringIndex(text, -1) {
		rest := text[at[0]:]
		if simpleSum().MatchString(rest) {
			continue
		}
		commands := simpleCommands().FindStringSubmatch(rest)
		if commands == nil {
			return false
		}
		for _, c := range connectives().Split(commands[1], -1) {
			if word := simpleCommand().FindStringSubmatch(c); word == nil || reserved().MatchString(word[1]) {
				return false
			}
		}
	}
	return true
}

// quoteASCII quotes s as one word for bash, with only ASCII characters.
func quoteASCII(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0 { // also for invalid UTF-8
		return quoteWord(s)
	}
	b := make([]byte, 0, len(s)*3/2)
	b = append(b, "$'"...)
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 0x80:
			b = append(b, '\\')
			b = strconv.AppendUint(b, uint64(c), 8)
		case c == '\'' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '\''))
}
