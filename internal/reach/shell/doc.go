// Package shell implements terminal sessions: shells that keep their state between commands.
// A Session runs commands one after the other in the same shell, so that the working
// directory, variables, functions and background children persist. A Job is a separate
// program beside the shell, with or without a terminal. Sessions has the sessions of one
// sandbox. The package uses only sandpit.Guest and so works for every provider.
//
// # How a command is run
//
// The shell (bash, else sh) gets its commands through a pipe. There is no terminal, so no
// echo, no prompt and no rewritten line ends. For each command the session sends one compound
// command:
//
//	{ mark C; if (parse only); then mark B; eval COMMAND; mark E $? $PWD; else mark X; fi; }
//
// For bash the length precedes it, and checking it needs no process: the command is first
// parsed as the body of a function that is never called (quickCheck). C and the parsing in a
// separate process are for commands that cannot be checked so.
//
// A mark is a control character and 128 random bits that are new for each call, written to
// the shell's outputs. The bytes between B and E are the unchanged output of the command. A
// command does not know the bits: the shell has read the whole compound before it begins, so
// they are in no pipe, environment, argument or file; COMMAND has an input of its own, and the
// traces of "set -x" and "set -v" show the script that prints a mark, never the mark. A
// hostile command can still read the memory of its own shell, or redefine printf. So the
// shell's reports are untrusted, like everything from a sandbox: a command can falsify its own
// result, but no other. This program measures time and enforces all bounds.
//
// COMMAND runs in the shell itself, with its three streams redirected. So a redirection of
// these by exec ends with the command; those of other descriptors persist. The descriptors 249
// to 251 (7 and 8 if the shell is not bash) belong to the session.
//
// # How a command is stopped
//
// The shell has a trap for SIGINT that leaves all loops, and in bash all functions, of a
// command. So an interrupt ends the program in the foreground, then the rest of the command,
// and the shell keeps running. If the command does not end, its processes are killed, and then
// the shell with all its descendants. Result.Outcome reports the step that was necessary.
package shell
