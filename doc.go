// Package sandpit is the vocabulary of the system: what a sandbox is (Sandbox, Spec), what
// creates one (Provider), what its first process offers (Guest), and how failures are
// classified (Code).
//
// It depends on the standard library only, so every other package can import
// it. Durations are time.Duration, sizes are bytes, times are wall-clock
// times of the machine that runs sandpit unless a comment says otherwise.
//
// Everything a sandbox reports about itself (exit codes, file names, sizes,
// times) comes from untrusted code and must be treated as a claim.
package sandpit
