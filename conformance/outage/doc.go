// Package outage has Docker's daemon, and ourselves, die in the middle of what is done
// for sandboxes: at random points of making, using, stopping, starting and deleting
// them. Whoever comes next finds everything that is left, and nothing stays behind. It
// has tests only.
package outage
