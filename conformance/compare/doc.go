// Package compare runs the same programs, in the same image, in sandboxes of gVisor
// and of Docker, by the same contract, and holds both to one table of results. Where
// they differ the table says so and why; docs/differences.md is written from it. It
// has tests only.
package compare
