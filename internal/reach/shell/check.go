package shell

import (
	"regexp"
	"strconv"
	"strings"
)

// quickCheck is a command for bash that succeeds if text can be parsed, without another
// process and without running any of it: text is made the body of a function. It may
// fail for what can be parsed, but does not succeed for what cannot: the body is enclosed
// by what text has no end of. It is "" if there is no such thing, or if bash might end at
// text.
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

// resetParser is a syntax error. Where bash has given up a text in the middle of [[ or the
// like, it reads the next one as if it were still there, until it fails once more. By
// command, this does not end a shell in POSIX mode.
const resetParser = `\command \eval ')'`

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// Where bash takes a text for a substitution of a command, or for the words of an array, it
// parses that at once; if it cannot, bash 5.2 ends, or goes on in the middle of the text.
// simpleCommands and simpleSum are those that can be parsed for sure.
var (
	substitution   = regexp.MustCompile(`[$<>=]\(`)
	simpleSum      = regexp.MustCompile(`^=\( *\)|^\$\(\([\w $+*/%<>=!&|?:,^~-]*\)\)`)
	simpleCommands = regexp.MustCompile(`^[$<>=]\(([\w ./:=,@%+~^*"$|;&-]*)\)`)
	simpleCommand  = regexp.MustCompile(`^ *([\w./:=,@%+~^*-]+)( +(?:[\w./:=,@%+~^*-]|\$\w|"[\w ./:=,@%+~^*-]*(?:\$\w[\w ./:=,@%+~^*-]*)*")+)* *$`)
	connectives    = regexp.MustCompile(`\|\||&&|[|;]`)
	reserved       = regexp.MustCompile(`^(?:if|then|elif|else|fi|time|for|in|until|while|do|done|case|esac|coproc|select|function)$`)
)

// safeSubstitutions reports whether each substitution in text, and all that looks like
// one, has commands that can be parsed.
func safeSubstitutions(text string) bool {
	for _, at := range substitution.FindAllStringIndex(text, -1) {
		rest := text[at[0]:]
		if simpleSum.MatchString(rest) {
			continue
		}
		commands := simpleCommands.FindStringSubmatch(rest)
		if commands == nil {
			return false
		}
		for _, c := range connectives.Split(commands[1], -1) {
			if word := simpleCommand.FindStringSubmatch(c); word == nil || reserved.MatchString(word[1]) {
				return false
			}
		}
	}
	return true
}

// quoteASCII makes one word of s for bash, of ASCII characters alone.
func quoteASCII(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0 { // also of what is no UTF-8
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
