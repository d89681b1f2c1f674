package shell

import (
	"fmt"
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
	// frame makes a script a message that the shell reads as one.
	frame func(script string) string
	// quote makes one word of a text.
	quote func(string) string
	// inline is how long a command may be that is a part of its message, in bytes.
	inline int
	// quick checks a command in the shell itself, or is "" if that cannot be done;
	// parser precedes a check in a process of its own.
	quick  func(text string) string
	parser string
	// status is a command that ends with an exit code.
	status func(code int) string
	// skips is true if an interrupt skips the end of the message, too, so that
	// another one must tell it.
	skips bool
}

// driver reads messages in a loop, since bash crashes when a command of a script that is
// its standard input copies that to another descriptor. A message begins with its length,
// so that it is read by two system calls and not byte by byte; it is of ASCII only, so
// that all locales count alike. A read that a signal interrupts (in POSIX mode) goes on
// where it was. What a command has left of bash's parser is put right before each message.
//
// An interrupt goes on with the next message; while one is read, it does nothing. In a
// function going on is possible with the help of the debugger's hook only: each next
// command returns from the function it is in, until none is left, and the one after
// those is skipped.
const driver = `exec 249<&0 250>&1 251>&2 </dev/null; ` +
	`trap '[[ ${__sandpit-} ]] || if ((${#FUNCNAME[@]})); then set -T; shopt -s extdebug; ` +
	`trap "if ((\${#FUNCNAME[@]})); then return 130; fi 2>/dev/null; ` +
	`trap \"shopt -u extdebug; set +T; trap - DEBUG\" DEBUG; ! continue 9999" DEBUG; ` +
	`return 130; else continue 9999; fi 2>/dev/null' INT; ` +
	`for ((;;)); do __sandpit=(8); ` + driverRead + `__sandpit=("${__sandpit[1]}"); ` + driverRead +
	resetParser + ` || :; builtin eval "${__sandpit[1]}"; done >/dev/null 2>&1`

// driverRead has __sandpit[1] be as many characters as __sandpit[0] says.
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
		// A shell of its own would be another process.
		status: func(code int) string {
			return `__sandpit() { \unset -f __sandpit; \return ` + strconv.Itoa(code) + `; }; __sandpit`
		},
	}
}

// posixDialect reads its script from the standard input, byte by byte. It takes descriptors of
// one digit only, and has nothing that leaves all functions.
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

// scriptFor is what a shell must read to run c. It is one compound command.
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
	// The loop is what an interrupt, or a stray break, leaves.
	b.WriteString(`then for _ in 1; do ` + both(markBegin) + earlier + `\eval ` + text +
		` <` + stdin + toOut + ` 2>&` + stderr + " " + d.closed + `; done; `)
	b.WriteString(`\command \printf '\036` + c.token + string(markEnd) + `%s %s\036` + c.token + `' "$?" "${PWD-}"` + toOut + `; ` +
		markCommand(c.token, markEnd) + toErr + `; `)
	b.WriteString(`else ` + both(markBad) + `fi; } >/dev/null 2>&1`)
	return d.frame(b.String())
}

// checkCommand is a command that succeeds if a quoted text can be parsed. It has a process of its
// own: some shells end at what they cannot parse. The first line of what is evaluated makes
// the others be parsed only. Patterns that a command may switch on itself are let through.
func (d dialect) checkCommand(text string) string {
	return `({ \set +x; } 2>/dev/null; ` + d.parser + `\eval ` + d.quote("\\set -n\n") + text + `) </dev/null >/dev/null`
}

// skipScript is what a shell must read after an interrupt.
func (d dialect) skipScript(token string) string {
	return d.frame(markCommand(token, markSkip) + ` >&` + d.stdout + "; " + markCommand(token, markSkip) + ` >&` + d.stderr)
}

// markCommand is a command that writes a mark.
func markCommand(token string, kind rune) string {
	return `\command \printf '\036` + token + string(kind) + `\036` + token + `'`
}

// quoteWord makes one word of s for a shell.
func quoteWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
