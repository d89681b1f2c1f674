// Package policy decides what an online sandbox may reach. It has no state and uses no
// network: the egress gateway in package network asks it about every name, address and
// connection.
//
// A rule is one of
//
//	203.0.113.7  2001:db8::1          an address, any port
//	203.0.113.0/24  2001:db8::/32     a range of addresses, any port
//	203.0.113.7:443  203.0.113.0/24:443  [2001:db8::1]:443  [2001:db8::/32]:443
//	example.org  example.org:443      a name
//	*.example.org  *.example.org:443  every name below it, but not itself
//
// The order of the rules in a policy does not matter:
//
//  1. A connection that a deny rule matches is denied.
//  2. Private and special addresses, and those of the machine itself, are denied
//     unless an allow rule is for such an address, or for a range that lies within
//     one private range, and the policy's Inside contains it. Names and wider
//     ranges never open them, so no DNS response can. Ceiling decides what Inside
//     contains.
//  3. Without allow rules everything else is allowed.
//  4. With allow rules only the connections that one of them matches are allowed.
//     Names are then resolved only if a rule allows them.
//
// A name in a rule matches the addresses that the gateway itself returned for it. On TCP
// ports 443 and 80, a connection that only a name allows must also have that name in the TLS
// ClientHello or the Host header.
//
// A header rule sets a header in HTTPS requests to one name. It allows no connection: the
// other rules decide whether the name may be reached.
package policy
