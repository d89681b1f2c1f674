// Package dialer opens connections for gateways that cannot open any themselves, and is
// the second wall between a sandbox and the inside of the machine's network.
//
// A gateway parses what a hostile sandbox sends, and decides. It has an empty network
// namespace and may not make sockets. The dialer, a process of its own in the machine's
// network, parses requests of a fixed size and nothing else, decides once more by code
// that shares nothing with the gateway's, and passes back a connected descriptor. So
// bytes and datagrams pass without it, and connections outlive it.
//
// Whatever a gateway asks for, it gets public unicast addresses that the kernel sends to
// another machine, its own resolvers, and what the sandbox was granted. The dialer learns
// of grants from the process that starts it, never from a gateway.
//
// It never waits: a descriptor is passed back while it is still connecting, and the
// gateway waits. So no sandbox can fill it up for others.
package dialer
