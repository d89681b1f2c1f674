// Package commandscreen checks a command before it runs, and reports whether it would
// destroy a system, such as rm -rf /, mkfs or a fork bomb.
//
// It is a guard rail and not the security boundary. It reads the text of a command: quotes,
// options in any order and form, braces, variables, functions and pipes of the same text, and
// programs that run other programs. It cannot see
// what a program does (python3 -c, make, a script in a file), the value of a variable
// that is set elsewhere, or the response of a server. A program can evade it. The sandbox
// is what prevents harm.
//
// A provider without isolation, whose commands run on the machine itself, should
// be used with the screen set to deny.
//
// Each check is bounded in time and memory for any input.
package commandscreen

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Action is what should be done with a command. A greater one is more severe.
type Action int

// The actions.
const (
	// Allow means that no rule matched.
	Allow Action = iota
	// Warn means that the command does harm in some circumstances.
	Warn
	// Ask means that the command hides what it runs, or that a person should decide.
	Ask
	// Deny means that the command destroys a system.
	Deny
)

// String returns the action as a word.
func (a Action) String() string {
	switch a {
	case Warn:
		return "warn"
	case Ask:
		return "ask"
	case Deny:
		return "deny"
	default:
		return "allow"
	}
}

// Verdict is the result of a check: the most severe finding, and the first of several
// equally severe ones.
type Verdict struct {
	Action Action
	// Rule is the short name of the rule that matched: "rm-root". A rule of the
	// user is "user". "" if none did.
	Rule string
	// Reason says in a few words what the command would do. It may be set when
	// Rule is not, if Unclear.
	Reason string
	// Text is the part of the command that matched, on one line and at most 200
	// bytes long. It is what the caller wrote, secrets included.
	Text string
	// Unclear means that a part of the command could not be parsed and was checked
	// word by word only. That alone does not refuse it.
	Unclear bool
}

// errorPrefix is the text that clients of this kind of screen know.
const errorPrefix = "Command contains potentially dangerous operation: "

// Err returns the error for a command that is not run because of the verdict,
// or nil if the action is Allow. It is sandpit.PermissionDenied, its text begins
// with "Command contains potentially dangerous operation: ", and it has a hint.
func (v Verdict) Err() error {
	if v.Action == Allow {
		return nil
	}
	err := sandpit.Errorf(sandpit.PermissionDenied, "%s%s (%s)", errorPrefix, v.Text, v.Reason)
	if v.Rule == userRule {
		return sandpit.WithHint(err, "the configuration has this rule: see sandbox.screen_deny, sandbox.screen_ask and sandbox.screen_warn")
	}
	return sandpit.WithHint(err, "name only the intended paths, such as a directory below /workspace; "+
		"or set command_screen to \"warn\" or \"off\": the sandbox protects the machine without it")
}

// Policy has the rules of a check. The zero Policy is Default: only the built-in rules. Its
// methods do not change it and may be called concurrently.
type Policy struct {
	// Deny, Ask, Warn and Allow are the user's rules. They come before the
	// built-in ones, in this order. Allow lifts the built-in rules for the
	// command it matches, but not for what that command runs in turn.
	Deny, Ask, Warn, Allow []Rule
	// NoBuiltin disables the built-in rules.
	NoBuiltin bool
	// Dir is the directory where the command starts, for relative paths. Default: unknown,
	// which allows most relative paths.
	Dir string
}

// Default returns the policy of the built-in rules.
func Default() Policy { return Policy{} }

// Rule matches a command by its program and arguments.
type Rule struct {
	// Program is a glob for the program's name without its directory: "git",
	// "mkfs.*".
	Program string
	// Args are globs, each of which must match at least one argument. * matches
	// any text, slashes included, and ? one character. An empty list matches any arguments.
	Args []string
	// Reason is the verdict's reason when the rule matches. Default: a text for the action,
	// such as "refused by a rule".
	Reason string
}

// Check checks a command as a list of the program and its arguments. For programs that run
// others (sh -c, env, sudo, xargs and so on) it checks the inner command. A single element
// with shell syntax is checked as a line for a shell.
func (p Policy) Check(args []string) Verdict {
	s := newState(p)
	switch {
	case len(args) == 0:
	case len(args) == 1 && strings.ContainsAny(args[0], " \t\n;|&(){}<>$`"):
		s.checkText(args[0])
	default:
		s.checkCommand(cleanArgs(args), "")
	}
	return s.verdict
}

// CheckText checks a line or a whole script for a POSIX shell or bash.
func (p Policy) CheckText(text string) Verdict {
	s := newState(p)
	s.checkText(text)
	return s.verdict
}
