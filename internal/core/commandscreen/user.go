package commandscreen

import "strings"

// userRule is the Verdict.Rule of the user's rules.
const userRule = "user"

// checkUser checks a command against the user's rules. It reports whether one of them
// matched, so that the built-in rules do not apply.
func (c ruleChecker) checkUser(program string, args []string) (settled bool) {
	for _, group := range []struct {
		rules  []Rule
		action Action
		reason string
	}{
		{c.policy.Deny, Deny, "refused by a rule"},
		{c.policy.Ask, Ask, "a rule asks for confirmation"},
		{c.policy.Warn, Warn, "a rule warns of it"},
		{c.policy.Allow, Allow, ""},
	} {
		for _, r := range group.rules {
			if !r.matchesCommand(program, args[1:]) {
				continue
			}
			reason := r.Reason
			if reason == "" {
				reason = group.reason
			}
			c.addFinding(finding{group.action, userRule, reason}, args)
			return true
		}
	}
	return false
}

func (r Rule) matchesCommand(program string, args []string) bool {
	if !matchGlob(r.Program, program) {
		return false
	}
	for _, pattern := range r.Args {
		found := false
		for _, a := range args {
			found = found || matchGlob(pattern, a)
		}
		if !found {
			return false
		}
	}
	return true
}

// matchGlob matches * and ?, which match slashes too. It backtracks to the last star only,
// so it takes at most len(pattern)*len(name) steps.
func matchGlob(pattern, name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
