package network_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// The reasons that a log gives.
const (
	reasonPrivate = "a private or special address"
	reasonOwn     = "an address of the machine itself"
	reasonNoRule  = "no rule allows it"
)

// rules tries every kind of rule, by IPv4 and IPv6, TCP and UDP.
func (l *lab) rules(t *testing.T) {
	for _, tc := range []struct {
		name        string
		allow, deny []string
		inside      []string
		reached     []string
		refused     map[string][]string // by the reason
	}{
		{
			name:    "by default",
			reached: []string{"tcp 93.184.215.14:7", "tcp [2606:2800::14]:7", "udp 93.184.215.14:7", "udp [2606:2800::14]:7", "ping 93.184.215.14", "ping 2606:2800::14"},
			refused: map[string][]string{
				reasonPrivate: {
					"tcp 10.1.2.3:7", "tcp 172.16.0.1:7", "tcp 192.168.1.1:7", "tcp 100.64.0.1:7", "tcp 198.18.0.1:7", "tcp 192.0.0.1:7", "tcp 240.0.0.1:7",
					"tcp 169.254.169.254:80", "tcp 168.63.129.16:80", "udp 169.254.169.253:53", "udp 10.1.2.3:7",
					"tcp [fd00:ec2::254]:80", "tcp [fd00::1]:7", "tcp [fec0::1]:7", "tcp [2002:a01:203::1]:7", "tcp [2001:db8::1]:7",
					"tcp [64:ff9b::a01:203]:7", "tcp [64:ff9b::a9fe:a9fe]:80", "udp [fd00::1]:7",
					"ping 10.1.2.3", "ping fd00::1",
				},
				reasonOwn: {
					"tcp " + own4 + ":7", "tcp [" + own6 + "]:7", "udp " + own4 + ":7", "udp [" + own6 + "]:7", "ping " + own4,
					"tcp 198.41.99.5:7", "udp 198.41.99.5:7", "ping 198.41.99.5", "tcp [2606:2800:99::5]:7", "udp [2606:2800:99::5]:7",
					"tcp [64:ff9b::7f00:1]:7", // which may be translated to it
				},
				// By this address it is the gateway that is called.
				"the gateway answers DNS only": {"tcp 10.0.2.2:7", "udp 10.0.2.2:7"},
			},
		},
		{
			name: "ranges", allow: []string{"93.184.215.0/25", "2606:2800::/32"}, deny: []string{"93.184.215.8/29", "2606:2800:dead::/48"},
			reached: []string{"tcp 93.184.215.17:7", "udp 93.184.215.17:7", "tcp [2606:2800::14]:7", "udp [2606:2800::14]:7"},
			refused: map[string][]string{
				reasonNoRule:               {"tcp 93.184.215.128:7", "udp 93.184.215.128:7", "tcp [2606:2801::14]:7", "udp [2606:2801::14]:7", "ping 93.184.215.128"},
				"deny 93.184.215.8/29":     {"tcp 93.184.215.14:7", "udp 93.184.215.14:7", "ping 93.184.215.14"},
				"deny 2606:2800:dead::/48": {"tcp [2606:2800:dead::1]:7", "udp [2606:2800:dead::1]:7"},
				reasonPrivate:              {"tcp 10.1.2.3:7"},
				reasonOwn:                  {"tcp [" + own6 + "]:7"}, // though the range has it
			},
		},
		{
			name: "ports", allow: []string{"93.184.215.14:7", "[2606:2800::14]:7", "93.184.215.0/24:22"}, deny: []string{"93.184.215.15:22"},
			reached: []string{"tcp 93.184.215.14:7", "udp 93.184.215.14:7", "tcp [2606:2800::14]:7", "tcp 93.184.215.16:22"},
			refused: map[string][]string{
				reasonNoRule:            {"tcp 93.184.215.14:853", "tcp [2606:2800::14]:22", "tcp 93.184.215.16:7", "udp 93.184.215.16:7", "ping 93.184.215.14"},
				"deny 93.184.215.15:22": {"tcp 93.184.215.15:22"},
			},
		},
		{
			name: "denied ports only", deny: []string{"0.0.0.0/0:22", "[::/0]:22"},
			reached: []string{"tcp 93.184.215.14:7", "tcp [2606:2800::14]:7"},
			refused: map[string][]string{"deny 0.0.0.0/0:22": {"tcp 93.184.215.14:22"}, "deny [::/0]:22": {"tcp [2606:2800::14]:22"}},
		},
		{
			name: "everything is not everything", allow: []string{"0.0.0.0/0", "::/0"}, inside: []string{"0.0.0.0/0", "::/0"},
			reached: []string{"tcp 93.184.215.14:7", "tcp [2606:2800::14]:7"},
			refused: map[string][]string{
				reasonPrivate: {"tcp 10.1.2.3:7", "tcp 169.254.169.254:80", "tcp [fd00::1]:7", "tcp [64:ff9b::a01:203]:7"},
				reasonOwn:     {"tcp " + own4 + ":7", "tcp [" + own6 + "]:7"},
			},
		},
		{
			name: "private by whom it is not granted", allow: []string{"10.0.0.0/8", own4, "fd00:1::/32", "169.254.169.254"}, inside: []string{"10.1.0.0/16:22"},
			reached: []string{"tcp 10.1.2.3:22"},
			refused: map[string][]string{
				reasonPrivate: {"tcp 10.1.2.3:7", "udp 10.1.2.3:7", "tcp 10.2.2.3:22", "tcp [fd00:1::5]:7", "tcp 169.254.169.254:80", "ping 10.1.2.3"},
				reasonOwn:     {"tcp " + own4 + ":7", "udp " + own4 + ":7", "ping " + own4},
			},
		},
		{
			name: "private on purpose", allow: []string{"10.1.0.0/16:7", own4 + ":7", "fd00:1::/32"}, deny: []string{"10.1.9.0/24"},
			inside:  []string{"10.1.0.0/16:7", own4 + ":7", "fd00:1::/32"},
			reached: []string{"tcp 10.1.2.3:7", "tcp " + own4 + ":7", "tcp [fd00:1::5]:7"},
			refused: map[string][]string{
				reasonPrivate:      {"tcp 10.2.2.3:7", "tcp 10.1.2.3:22", "tcp [fd00:2::5]:7", "tcp [64:ff9b::a01:203]:7"},
				"deny 10.1.9.0/24": {"tcp 10.1.9.1:7"}, reasonOwn: {"tcp " + own4 + ":22"}, reasonNoRule: {"tcp 93.184.215.14:7"},
			},
		},
		{
			name: "nothing", deny: []string{"0.0.0.0/0", "::/0"},
			refused: map[string][]string{
				"deny 0.0.0.0/0": {"tcp 93.184.215.14:7", "udp 93.184.215.14:7", "ping 93.184.215.14"}, "deny ::/0": {"tcp [2606:2800::14]:7", "udp [2606:2800::14]:7"},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := l.box(t, sandpit.NetworkPolicy{Allow: tc.allow, Deny: tc.deny, Inside: tc.inside})
			b.wantReached(t, tc.reached...)
			for reason, attempts := range tc.refused {
				b.wantRefused(t, reason, attempts...)
			}
		})
	}
}

// limits tries to have more than they allow. Bounds are of what must not be quicker, so
// a busy machine breaks none.
func (l *lab) limits(t *testing.T) {
	const addr = "93.184.215.14:7"
	t.Run("connections", func(t *testing.T) {
		b := l.box(t, sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{Connections: 3}})
		if got := b.try(t, "hold", addr, "8"); got != "3" {
			t.Errorf("%s connections at a time, want 3", got)
		}
		b.wantLogged(t, "tcp", addr, "the sandbox has too many connections")
		b.becomes(t, "yes", "tcp", "[2606:2800::14]:7") // when those have ended
	})
	t.Run("connection rate", func(t *testing.T) {
		const rate = 2
		b := l.box(t, sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{ConnectionRate: rate}})
		var made, millis int64
		if _, err := fmt.Sscan(b.try(t, "burst", addr, "40"), &made, &millis); err != nil {
			t.Fatal(err)
		}
		if most := rate + 1 + rate*millis/1000; made < 1 || made > most {
			t.Errorf("%d connections in %d ms, want at most %d", made, millis, most)
		}
		if made < 40 {
			b.wantLogged(t, "tcp", addr, "the sandbox opens too many connections a second")
		}
	})
	const bytes, rate, burst = 128 << 10, 64 << 10, 16 << 10
	const least = (bytes - burst) * 1000 / rate // milliseconds
	slow := l.box(t, sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{Receive: rate, Send: rate}})
	for _, verb := range []string{"download", "upload"} {
		for _, addr := range []string{"93.184.215.14:9", "[2606:2800::14]:9"} {
			t.Run(verb+" "+addr, func(t *testing.T) {
				got := slow.try(t, verb, addr, strconv.Itoa(bytes))
				millis, err := strconv.Atoi(got)
				if err != nil {
					t.Fatal(got)
				}
				// The bucket may have been fuller than it says by what passed between
				// two looks at the clock.
				if millis < least*9/10 {
					t.Errorf("%d bytes in %d ms, want at least %d", bytes, millis, least)
				}
			})
		}
	}
}
