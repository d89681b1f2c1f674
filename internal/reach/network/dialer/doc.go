// Package dialer opens connections for egress gateways, which cannot open any themselves. It
// is the second check between a sandbox and the inside of the machine's network.
//
// A gateway parses the packets of a hostile sandbox, and decides. It has an empty network
// namespace and may not create sockets. The dialer, a separate process in the machine's
// network, parses only requests of a fixed size, decides again with code that shares nothing
// with the gateway's, and returns a connected descriptor. So traffic does not pass through the
// dialer, and connections outlive it.
//
// A gateway can reach only public unicast addresses that the kernel routes to another machine,
// its own resolvers, and the addresses granted to the sandbox. The dialer gets grants from the
// process that starts it, never from a gateway.
//
// The dialer never waits for a connection: it returns a descriptor that is still connecting,
// and the gateway waits. So no sandbox can block it for others.
package dialer
