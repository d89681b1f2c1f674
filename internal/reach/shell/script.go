package shell

import (
	"fmt"
	"strconv"
	"strings"
)

// dialect has the differences between shells.
type dialect struct {
	name string
	args []string
	// interactive are the arguments for a person at a terminal.
	interactive []string
	// stdout and stderr are the descriptors of the session's pipes while the streams of
	// commands are redirected; closed closes these descriptors for commands.
	stdout, stderr, closed string
	// prologue is the first script that the shell reads.
	prologue string
	// frame encodes a script as one message for the shell.
	frame func(script string) string
	// quote quotes a text as one word.
	quote func(string) string
	// inline bounds a command inside its message, in bytes; a longer one is in a file.
	inline int
	// quick returns a command that checks a text in the shell itself, or "" if that is not
	// possible; parser is the prefix of a check in a separate process.
	quick  func(text string) string
	parser string
	// status is a command that returns an exit code.
	status func(code int) string
	// skips is true if an interrupt skips the end of the message too, so that another message
	// must report it.
	skips bool
}

// driver reads messages in a loop, since bash crashes when a command of a script that is
// its standard input copies that to another descriptor. A message begins with its length,
// so that bash reads it with two system calls and not byte by byte; it has only ASCII, so that
// all locales count the same. A read that a signal interrupts (in POSIX mode) resumes at its
// position. Before each message, the driver resets bash's parser.
//
// An interrupt skips to the next message; during a read it does nothing. In a function,
// skipping needs the debugger's hook: each next command returns from its function until all
// functions are left, and the command after those is skipped.
const driver = `exec 249<&0 250>&1 251>&2 </dev/null; ` +
	`trap '[[ ${__sandpit-} ]] || if ((${#FUNCNAME[@]})); then set -T; shopt -s extdebug; ` +
	`trap "if ((\${#FUNCNAME[@]})); then return 130; fi 2>/dev/null; ` +
	`trap \"shopt -u extdebug; set +T; trap - DEBUG\" DEBUG; ! continue 9999" DEBUG; ` +
	`return 130; else continue 9999; fi 2>/dev/null' INT; ` +
	`for ((;;)); do __sandpit=(8); ` + driverRead + `__sandpit=("${__sandpit[1]}"); ` + driverRead +
	resetParser + ` || :; builtin eval "${__sandpit[1]}"; done >/dev/null 2>&1`

// driverRead reads as many characters into __sandpit[1] as __sandpit[0] specifies.
const driverRead = `while ((${#__sandpit[1]} < __sandpit)); do ` +
	`__sandpit[2]=; builtin read -r -N "$((__sandpit - ${#__sandpit[1]}))" -u 249 "__sandpit[2]" || (($? > 128)) || exit; ` +
	`__sandpit[1]+=${__sandpit[2]}; done; `

func bashDialect() dialect {
	return dialect{
		name: "bash", args: []string{"bash", "--noprofile", "--norc", "-c", driver, "bash"},
		interactive: []string{"bash", "-i"},
		stdout:      "250", stderr: "251", closed: "249<&- 250>&- 251>&-",
		frame: func(script string) string {
			script = `\unset -v __sandpit; ` + script
			return fmt.Sprintf("%8d", len(script)) + script
		},
		quote: quoteASCII, inline: 64 << 10, quick: quickCheck, parser: `\shopt -s extglob; `, skips: true,
		// A subshell would be another process.
		status: func(code int) string {
			return `__sandpit() { \unset -f __sandpit; \return ` + strconv.Itoa(code) + `; }; __sandpit`
		},
	}
}

// posixDialect is for other shells. They read the script from the standard input byte by
// byte, support only descriptors of one digit, and cannot leave all functions at once.
func posixDialect() dialect {
	return dialect{
		name: "sh", args: []string{"sh"}, interactive: []string{"sh", "-i"},
		stdout: "7", stderr: "8", closed: "7>&- 8>&-",
		prologue: "exec 7>&1 8>&2; trap 'break 9999 2>/dev/null' INT\n",
		frame:    func(script string) string { return script + "\n" },
		quote:    quoteWord, inline: 4 << 10, quick: func(string) string { return "" },
		status: func(code int) string { return `(\exit ` + strconv.Itoa(code) + `)` },
	}
}

// The kinds of marks, in the order in which a shell writes them.
const (
	markCheck = 'C' // parser messages follow
	markBegin = 'B' // the command's own output follows
	markEnd   = 'E' // the command has ended; on the standard output with status and directory
	markBad   = 'X' // the command cannot be parsed
	markSkip  = 'S' // an interrupt has skipped the rest of the command
)

// separator begins and ends a mark, together with the token. A shell that traces its script
// prints the escape, never the character.
const separator = "\x1e"

// end follows a command. The empty line ends a backslash at the end of the last line, which
// bash would otherwise apply to its next input.
const end = "\n\n"

// call is one command of a shell.
type call struct {
	token string
	// text is the command, unless file is its path.
	text, file string
	// stdin is the path of the input; "" means an empty input.
	stdin  string
	merged bool // both outputs go to the standard output
	status int  // of the previous command, for $?
}

// scriptFor returns the script that runs c, one compound command.
func (d dialect) scriptFor(c call) string {
	toOut, toErr := " >&"+d.stdout, " >&"+d.stderr
	both := func(kind rune) string {
		return markCommand(c.token, kind) + toOut + "; " + markCommand(c.token, kind) + toErr + "; "
	}
	text, check, stdin, stderr := `"$(\command cat `+c.file+`)"`+d.quote(end), "", "/dev/null", d.stderr
	if c.file == "" {
		text = d.quote(c.text + end)
		if quick := d.quick(c.text); quick != "" {
			check = quick + " || "
		}
	}
	if c.stdin != "" {
		stdin = c.stdin
	}
	if c.merged {
		stderr = d.stdout
	}
	earlier := ""
	if c.status != 0 {
		earlier = d.status(c.status) + ` || `
	}
	var b strings.Builder
	b.WriteString(`{ if ` + check + `{ ` + both(markCheck) + d.checkCommand(text) + ` 2>&` + d.stderr + `; }; `)
	// An interrupt, or a stray break, leaves this loop.
	b.WriteString(`then for _ in 1; do ` + both(markBegin) + earlier + `\eval ` + text +
		` <` + stdin + toOut + ` 2>&` + stderr + " " + d.closed + `; done; `)
	b.WriteString(`\command \printf '\036` + c.token + string(markEnd) + `%s %s\036` + c.token + `' "$?" "${PWD-}"` + toOut + `; ` +
		markCommand(c.token, markEnd) + toErr + `; `)
	b.WriteString(`else ` + both(markBad) + `fi; } >/dev/null 2>&1`)
	return d.frame(b.String())
}

// checkCommand returns a command that succeeds if a quoted text can be parsed. It uses a
// separate process, because some shells end at a syntax error. Its first line makes the shell
// only parse the others. Patterns that a command may enable itself are accepted.
func (d dialect) checkCommand(text string) string {
	return `({ \set +x; } 2>/dev/null; ` + d.parser + `\eval ` + d.quote("\\set -n\n") + text + `) </dev/null >/dev/null`
}

// skipScript returns the script for after an interrupt.
func (d dialect) skipScript(token string) string {
	return d.frame(markCommand(token, markSkip) + ` >&` + d.stdout + "; " + markCommand(token, markSkip) + ` >&` + d.stderr)
}

// markCommand returns a command that writes a mark.
func markCommand(token string, kind rune) string {
	return `\command \printf '\036` + token + string(kind) + `\036` + token + `'`
}

// quoteWord quotes s as one word for a shell.
func quoteWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
