// Package network is the egress gateway of one online sandbox: a separate network stack at the
// other end of the sandbox's only link. Each connection of the sandbox ends in that stack. The
// gateway asks package policy, and dials through the machine's network if the policy allows
// it. Packets of the sandbox never reach the machine, so sandpit changes nothing on the
// machine: no bridge, no address translation, no filter, no privileges.
//
// The gateway runs in a separate process without any privileges (see provider/gvisor), because
// everything on the link is hostile.
package network

import "net/netip"

// MTU is the largest packet on the link, in bytes. The link is in memory, where fewer, larger
// packets are faster.
const MTU = 65000

// Addresses are the addresses of a link. They are the same for every sandbox, because no two
// sandboxes share a link.
type Addresses struct {
	Box4, Gateway4 netip.Prefix
	Box6, Gateway6 netip.Prefix
}

// LinkAddresses returns the addresses of every link.
func LinkAddresses() Addresses {
	return Addresses{
		Box4: netip.MustParsePrefix("10.0.2.15/24"), Gateway4: netip.MustParsePrefix("10.0.2.2/24"),
		Box6: netip.MustParsePrefix("fd73:7069:7400::f/64"), Gateway6: netip.MustParsePrefix("fd73:7069:7400::2/64"),
	}
}

// Bounds of one sandbox's use of its gateway.
const (
	maxConnections = 4096 // connections being opened included
	maxDatagrams   = 1024 // UDP flows
	maxQuestions   = 128  // DNS questions at a time
	maxAnswers     = 4096 // addresses with recorded names
	maxDecisions   = 1024 // entries of the log
	maxEchoes      = 64   // pings at a time
)
