// Package shell gives a sandbox terminal sessions: shells that remember. A
// Session runs one command after the other in the same shell, so that working
// directory, variables, functions and background children live on; a Job is a
// program of its own beside it, with or without a terminal. Sessions holds those
// of one sandbox. All of it uses sandpit.Guest only and so works for every
// provider.
//
// # How a command is run
//
// The shell (bash, else sh) gets its commands through a pipe; there is no terminal, so no echo, no prompt and no rewritten line ends. For each
// command the session sends one compound command:
//
//	{ mark C; if (parse only); then mark B; eval COMMAND; mark E $? $PWD; else mark X; fi; }
//
// bash reads it after its length, and starts no process for it: there the command is first
// made the body of a function, which is never called, and C and the parsing in a process of
// its own are for what cannot be checked so (quickCheck).
//
// A mark is a control character and 128 random bits that are new for each call,
// written to the shell's outputs. What lies between B and E is the output of the
// command, byte by byte, whatever it looks like. A command cannot know the bits:
// the shell has read the whole compound before it begins, so they are in no pipe,
// environment, argument or file; COMMAND has an input of its own, and the traces
// of "set -x" and "set -v" show the script that prints a mark, never the mark. A
// command that goes out of its way can still read the memory of its own shell, or
// redefine printf. So what a shell says about its commands is a claim like
// everything that comes out of a sandbox: it can deceive its own caller about its
// own result, and nobody else. The clock and all bounds are kept on this side.
//
// COMMAND runs in the shell itself, with its three streams redirected for it. A
// redirection by exec of those ends with the command, therefore; other descriptors
// last. The descriptors 249 to 251 (7 and 8 if the shell is not bash) are the
// session's.
//
// # How a command is stopped
//
// The shell has a trap for SIGINT that leaves all loops, and in bash all functions,
// of a command. So an interrupt ends the program in the foreground, then the rest of
// the command, and the shell goes on. If that does not help, what the command started
// is killed, and if that does not help either, the shell and all that it started.
// Result.Outcome says which it was.
package shell
