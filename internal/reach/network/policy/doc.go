// Package policy decides what an online sandbox may reach. It holds no state and
// touches no network: the gateway in package network asks it about every name,
// address and connection.
//
// A rule is one of
//
//	203.0.113.7  2001:db8::1          an address, any port
//	203.0.113.0/24  2001:db8::/32     a range of addresses, any port
//	203.0.113.7:443  203.0.113.0/24:443  [2001:db8::1]:443  [2001:db8::/32]:443
//	example.org  example.org:443      a name
//	*.example.org  *.example.org:443  every name below it, but not itself
//
// The order in which rules are given means nothing:
//
//  1. What a deny rule matches is denied.
//  2. Private and special addresses, and those of the machine itself, are denied
//     unless an allow rule names exactly such addresses, a single address, or a
//     range that lies within one private range, and the policy's Inside contains
//     it. Names and wider ranges never open them, so no DNS answer can. Ceiling
//     decides what Inside contains.
//  3. Without allow rules everything else is allowed.
//  4. With allow rules only what one of them matches is allowed. Names are then
//     resolved only if a rule allows them.
//
// A name in a rule stands for the addresses that the gateway itself has answered
// for it. On TCP ports 443 and 80 what allows a connection by a name alone also
// wants that name in the TLS greeting or the Host header.
//
// A header is set in requests to one name by HTTPS. It opens nothing: the rules say
// whether the name may be reached at all.
package policy
