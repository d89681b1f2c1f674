// Package attacks tries to break out of a sandbox, or to harm others from inside one. It contains only
// tests: an attacking program runs in real sandboxes, and the tests check the results from outside.
package attacks
