package commandscreen

import "strings"

// finding is the result of one rule.
type finding struct {
	action Action
	rule   string
	reason string
}

// findings are the results of one check so far. The most severe one is the verdict.
type findings struct{ verdict Verdict }

// addFinding makes a finding the verdict if it is more severe than the current one.
func (f *findings) addFinding(one finding, args []string) {
	if one.action <= f.verdict.Action {
		return
	}
	f.verdict.Action, f.verdict.Rule, f.verdict.Reason = one.action, one.rule, one.reason
	f.verdict.Text = renderText(strings.Join(args, " "))
}

// noteUnclear records that a part could not be parsed.
func (f *findings) noteUnclear(why string) {
	f.verdict.Unclear = true
	if f.verdict.Reason == "" {
		f.verdict.Reason = why
	}
}

// noteTooMuch records that a bound is exceeded.
func (f *findings) noteTooMuch() {
	f.verdict.Unclear = true
	f.addFinding(finding{Ask, "too-involved", "it is too long or too involved to be checked"}, []string{"..."})
}

// maxShown is how many bytes of a command a verdict has at most.
const maxShown = 200

// renderText renders a part of a command for people: one line, unknown parts as three dots.
func renderText(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == unknown || r == fromNet || r == hidden:
			b.WriteString("...")
		case r == isSet:
		case r < ' ' || r == 0x7f:
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
		if b.Len() > maxShown-8 {
			b.WriteString("...")
			break
		}
	}
	return strings.TrimSpace(b.String())
}
