// Package chaos kills a server repeatedly while clients use it. Every sandbox that a client knows must
// then exist or have a reason why not, and nothing else may be left on the machine. It contains only
// tests.
package chaos
