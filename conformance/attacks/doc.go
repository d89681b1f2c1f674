// Package attacks holds attempts to break out of a sandbox, or to harm others
// from within one. They are tests only: a program that attacks runs in real
// sandboxes, and the tests judge from outside what came of it.
package attacks
