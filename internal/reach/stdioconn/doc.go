// Package stdioconn carries reliable connections over the standard input and output of a container's first process.
// Every Docker engine, local or remote, offers these without a network.
//
// An engine merges the input of all attached clients into one stream, in pieces that may begin and end anywhere, and
// sends all output to all of them while they are attached. So pieces can be torn and lost. A connection has a random
// number, by which both sides recognize its frames, and every frame has checksums. Lost data is sent again, also over
// another attachment, so a connection survives the loss of an attachment. After losses less is sent at once.
//
// The client's side is a Link, the container's side a Listener. A connection ends when one side closes it. The
// container's side also ends it when it has received nothing from the client for a while.
package stdioconn
