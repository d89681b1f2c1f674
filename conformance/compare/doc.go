// Package compare runs the same programs in the same image in sandboxes of gVisor and of Docker, and
// checks both against one table of results. The table gives the reason for each difference, and
// docs/differences.md is generated from it. It contains only tests.
package compare
