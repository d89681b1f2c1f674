package commandscreen

import "strings"

// checkUnparsed checks a text that does not parse, word by word. It knows only quotes and
// the characters that end a command.
func (s *state) checkUnparsed(text string) {
	s.noteUnclear("it is not valid shell text and was only checked word by word")
	if name, ok := findSqueezedBomb(text); ok {
		s.addFinding(forkBombFinding(), []string{name + "(){" + name + "|" + name + "&}"})
	}
	var words []string
	flush := func() {
		if len(words) > 0 && s.countStep() {
			s.checkCommand(words, "")
		}
		words = nil
	}
	for text != "" {
		switch c := text[0]; {
		case strings.IndexByte(" \t\r", c) >= 0:
			text = text[1:]
		case strings.IndexByte("\n;|&(){}`", c) >= 0:
			flush()
			text = text[1:]
		default:
			var word string
			word, text = lenientWord(text)
			if len(words) > 0 || !isKeyword(word) {
				words = append(words, word)
			}
		}
	}
	flush()
}

// isKeyword reports whether a command may follow the word.
func isKeyword(word string) bool {
	switch word {
	case "if", "then", "elif", "else", "while", "until", "do", "!", "time":
		return true
	}
	return false
}

// lenientWord splits the first word off a text. A quote that does not end is an ordinary
// character.
func lenientWord(text string) (word, rest string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == '\'' || c == '"':
			// A word is not longer than this; without the limit many quotes
			// without an end would be searched for again and again.
			within := text[i+1 : min(len(text), i+1+maxLength)]
			end := strings.IndexByte(within, c)
			if end < 0 {
				continue
			}
			b.WriteString(within[:end])
			i += end + 1
		case strings.IndexByte(" \t\r\n;|&(){}`", c) >= 0:
			return b.String(), text[i:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}
