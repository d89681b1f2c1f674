// Package stdioconn makes reliable connections out of the standard input and output
// of a container's first process, which is all that every Docker engine, near or
// far, gives without a network.
//
// What makes them special is how an engine joins those who attach: it merges what
// all of them write into one input, in pieces that may begin and end anywhere, and
// tells all of them everything that is put out, as long as they are attached. So
// pieces can be torn and lost. A connection has a random number, by which both
// sides find their own frames among those of others, and every frame has a
// checksum. What was lost is sent again, also over another attachment, so that a
// connection survives one that breaks. The more is lost, the less is sent at once.
//
// The client's side is a Link, the container's a Listener. A connection ends when
// one side closes it, and the container's side also when nothing was heard of the
// other for a while.
package stdioconn
