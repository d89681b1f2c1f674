// Package data serves what happens inside sandboxes: commands, files and the guest's
// own protocol, over plain HTTP handlers, since most of it is streams.
//
// Every call finds its sandbox by api.Use and holds it while it lasts, so a sandbox in
// use is not idle. When the sandbox is taken away, or the server ends, the call ends
// with the reason; an answer that has begun is broken off then, so that nobody takes a
// part for the whole. When the client goes away, what it waited for is given up.
//
// What comes out of a sandbox is hostile: no answer is one that a browser would run,
// no header of a guest passes that is not known, and everything that is kept in memory
// is bounded.
package data
