// Package network holds attempts to reach from within a sandbox what its network
// policy forbids. They are tests only. Each runs in a network namespace of its own, in
// which every address there is, public, private or special, leads to servers of the
// test: so whatever a gateway lets out is answered, and heard.
package network
