// Package outage kills Docker's daemon, or the program that uses it, at random points while sandboxes
// are created, used, stopped, started and deleted. The next program must find all remaining sandboxes,
// and nothing else may be left. It contains only tests.
package outage
