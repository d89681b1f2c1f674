// Package owners attacks one owner of a server, and its administrator, as another owner with an
// ordinary key. It contains only tests: each starts a real server with real sandboxes, acts as the
// attacker, and checks what the victim sees.
package owners
