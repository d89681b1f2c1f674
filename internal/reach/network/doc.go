// Package network is the gateway of one online sandbox: a network stack of its own
// at the other end of the sandbox's only link. Each connection that the sandbox
// opens ends in it; the gateway asks package policy, and dials by the machine's
// network if it may. Packets of the sandbox never reach the machine, so nothing of
// the machine has to be set up or torn down: no bridge, no translation of
// addresses, no filter, no rights.
//
// The gateway runs in a process of its own without any rights (see provider/gvisor):
// everything that comes by the link is hostile.
package network

import "net/netip"

// MTU is the largest packet on the link, in bytes. There is no wire: fewer, larger
// packets are what makes it fast.
const MTU = 65000

// Addresses are those of a link. They are the same for every sandbox, since no two
// share a link.
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

// The bounds of what one sandbox may use of its gateway.
const (
	maxConnections = 4096 // those that are being opened included
	maxDatagrams   = 1024 // conversations by UDP
	maxQuestions   = 128  // DNS questions at a time
	maxAnswers     = 4096 // addresses that are remembered
	maxDecisions   = 1024 // that are remembered
	maxEchoes      = 64   // pings at a time
)
