package shell

import (
	"strconv"
	"strings"
)

// dialect is what differs between shells.
type dialect struct {
	name string
	args []string
	// interactive are the arguments for a person at a terminal.
	interactive []string
	// stdout and stderr are descriptors at which the session's pipes stay while
	// those of commands are redirected; closed keeps them from commands.
	stdout, stderr, closed string
	// prologue is what the shell reads first.
	prologue string
	// before and after enclose each message; parser precedes the check of one.
	before, after, parser string
	// skips is true if an interrupt skips the end of the message, too, so that
	// another one must tell it.
	skips bool
}

// bash does not read its script from the standard input itself: it crashes when a
// command of such a script copies its standard input to another descriptor. A loop
// reads messages that end in a NUL byte instead. An interrupt goes on with the next
// one. In a function that is possible with the help of the debugger's hook only: each
// next command returns from the function it is in, until none is left, and the one
// after those is skipped.
func bash() dialect {
	const driver = `exec 249<&0 250>&1 251>&2 </dev/null; ` +
		`trap 'if ((${#FUNCNAME[@]})); then set -T; shopt -s extdebug; ` +
		`trap "if ((\${#FUNCNAME[@]})); then return 130; fi 2>/dev/null; ` +
		`trap \"shopt -u extdebug; set +T; trap - DEBUG\" DEBUG; ! continue 9999" DEBUG; ` +
		`return 130; else continue 9999; fi 2>/dev/null' INT; ` +
		`while IFS= read -r -d "" -u 249 __sandpit || (($? > 128)); do eval "${__sandpit-}"; done >/dev/null 2>&1`
	return dialect{
		name: "bash", args: []string{"bash", "--noprofile", "--norc", "-c", driver, "bash"},
		interactive: []string{"bash", "-i"},
		stdout:      "250", stderr: "251", closed: "249<&- 250>&- 251>&-",
		before: `\unset -v __sandpit; `, after: "\x00", parser: `\shopt -s extglob; `, skips: true,
	}
}

// posix reads its script from the standard input. It takes descriptors of one digit
// only, and has nothing that leaves all functions.
func posix() dialect {
	return dialect{
		name: "sh", args: []string{"sh"}, interactive: []string{"sh", "-i"},
		stdout: "7", stderr: "8", closed: "7>&- 8>&-",
		prologue: "exec 7>&1 8>&2; trap 'break 9999 2>/dev/null' INT\n", after: "\n",
	}
}

// The kinds of marks, in the order in which a shell writes them.
const (
	markCheck = 'C' // the command is being parsed; what follows is about that
	markBegin = 'B' // the command's own output follows
	markEnd   = 'E' // it has ended; to the standard output with status and directory
	markBad   = 'X' // it cannot be parsed
	markSkip  = 'S' // an interrupt has skipped what was left of it
)

// separator begins and ends a mark together with the token. A shell that shows its
// script shows the escape, never the character.
const separator = "\x1e"

// end follows a command. The empty line keeps bash from taking the backslash of a
// last line into what it reads next.
const end = "\n\n"

// call is one command for a shell.
type call struct {
	token string
	// text is the command, or file names where it is.
	text, file string
	// stdin is a file; empty means an empty input.
	stdin  string
	merged bool // both outputs go to the standard output
	status int  // of the command before, for $?
}

// script is what a shell must read to run c. It is one compound command.
func (d dialect) script(c call) string {
	toOut, toErr := " >&"+d.stdout, " >&"+d.stderr
	both := func(kind rune) string { return mark(c.token, kind) + toOut + "; " + mark(c.token, kind) + toErr }
	text, stdin, stderr := quote(c.text), "/dev/null", d.stderr
	if c.file != "" {
		text = `"$(\command cat ` + c.file + `)"`
	}
	if c.stdin != "" {
		stdin = c.stdin
	}
	if c.merged {
		stderr = d.stdout
	}
	earlier := ""
	if c.status != 0 {
		earlier = `(\exit ` + strconv.Itoa(c.status) + `) || `
	}
	var b strings.Builder
	b.WriteString(d.before + "{ " + both(markCheck) + "; ")
	// In a process of its own: some shells end at what they cannot parse. The
	// first line of what is evaluated makes the others be parsed only. Patterns
	// that a command may switch on itself are let through.
	b.WriteString(`if ({ \set +x; } 2>/dev/null; ` + d.parser + `\eval ` + quote("\\set -n\n") + text + quote(end) + `) </dev/null >/dev/null 2>&` + d.stderr + `; `)
	// The loop is what an interrupt, or a stray break, leaves.
	b.WriteString(`then for _ in 1; do ` + both(markBegin) + `; ` + earlier + `\eval ` + text + quote(end) +
		` <` + stdin + toOut + ` 2>&` + stderr + " " + d.closed + `; done; `)
	b.WriteString(`\command \printf '\036` + c.token + string(markEnd) + `%s %s\036` + c.token + `' "$?" "${PWD-}"` + toOut + `; ` +
		mark(c.token, markEnd) + toErr + `; `)
	b.WriteString(`else ` + both(markBad) + `; fi; } >/dev/null 2>&1` + d.after)
	return b.String()
}

// skipped is what a shell must read after an interrupt.
func (d dialect) skipped(token string) string {
	return d.before + mark(token, markSkip) + ` >&` + d.stdout + "; " + mark(token, markSkip) + ` >&` + d.stderr + d.after
}

// mark is a command that writes a mark.
func mark(token string, kind rune) string {
	return `\command \printf '\036` + token + string(kind) + `\036` + token + `'`
}

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
