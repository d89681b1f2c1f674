// Package network tries to reach, from inside a sandbox, addresses that its network policy forbids. It
// contains only tests. Each runs in its own network namespace, in which every public, private or
// special address leads to servers of the test: they answer and record everything that a gateway lets
// out.
package network
