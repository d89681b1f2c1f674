package network_test

import (
	"io"
	"net"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// BenchmarkTransfer carries bytes through a gateway, with both of its ends in this
// process.
func BenchmarkTransfer(b *testing.B) {
	const block = 256 << 10
	for _, way := range []string{"up", "down"} {
		b.Run(way, func(b *testing.B) {
			n := newInternet()
			n.serve(b, func(conn net.Conn) {
				if way == "up" {
					_, _ = io.Copy(io.Discard, conn)
					_, _ = conn.Write([]byte("x"))
					return
				}
				data := make([]byte, block)
				for {
					if _, err := conn.Write(data); err != nil {
						return
					}
				}
			}, public4)
			conn, err := newBox(b, n, network.Config{}).dial(public4)
			if err != nil {
				b.Fatal(err)
			}
			data := make([]byte, block)
			b.SetBytes(block)
			for b.Loop() {
				if way == "up" {
					_, err = conn.Write(data)
				} else {
					_, err = io.ReadFull(conn, data)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
