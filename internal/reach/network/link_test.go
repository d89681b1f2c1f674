package network_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// TestLinkKeepsOrder sends to a sandbox that reads nothing until its link and the queue
// are full. What was taken arrives later, in order, and so does what is sent meanwhile.
func TestLinkKeepsOrder(t *testing.T) {
	t.Parallel()
	send, waiting, pump, end := network.NewSender(t)
	packet := func(i int) []byte { return binary.BigEndian.AppendUint32(make([]byte, 16<<10), uint32(i)) }
	var sent int
	for send(packet(sent)) {
		sent++
	}
	if n := waiting(); n != network.LinkQueue || sent <= n {
		t.Fatalf("%d of %d packets wait, want %d and more that do not", n, sent, network.LinkQueue)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- pump(ctx) }()
	_ = end.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 64<<10)
	for i, late := 0, network.LinkQueue; i < sent; i++ {
		n, err := end.Read(buf)
		if err != nil || n < 4 {
			t.Fatalf("packet %d: %d bytes, %v", i, n, err)
		}
		if got := binary.BigEndian.Uint32(buf[n-4:]); got != uint32(i) {
			t.Fatalf("packet %d came instead of %d", got, i)
		}
		if late > 0 && send(packet(sent)) {
			sent++
			late--
		}
	}
	if n := waiting(); n > 1 { // the last may not be counted yet
		t.Errorf("%d packets still wait", n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
