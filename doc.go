// Package sandpit is the vocabulary of the system: what a sandbox is, what may
// be asked of the places that make one (Provider) and of the program inside it
// (Guest), and how failures are named (Code).
//
// It depends on the standard library only, so that every other package can
// speak it. Durations are time.Duration, sizes are bytes, times are wall-clock
// times of the machine that runs sandpit unless a comment says otherwise.
//
// Everything a sandbox reports about itself (exit codes, file names, sizes,
// times) comes from untrusted code and must be treated as a claim.
package sandpit
