// Package chaos kills a server while clients use it, again and again, and then
// counts: every sandbox that a client was told of must be there or have a reason not
// to be, and nothing else may be left on the machine. It is tests only.
package chaos
