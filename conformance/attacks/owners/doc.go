// Package owners holds attacks of one owner on another, and on the administrator, of a
// server that both use with ordinary keys. They are tests only: each starts a real server
// with real sandboxes, does what the attacker would do, and checks what the victim sees.
package owners
