package network

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
)

// meter counts the bytes on the link, and enforces the limits. A stream above a limit waits,
// which slows its sender; datagrams above it are dropped.
type meter struct {
	received, sent atomic.Int64 // bytes of packets

	receive, send *rate.Limiter // bytes
	begin         *rate.Limiter // connections
}

func newMeter(l sandpit.NetworkLimits) *meter {
	m := &meter{receive: rate.NewLimiter(rate.Inf, 0), send: rate.NewLimiter(rate.Inf, 0), begin: rate.NewLimiter(rate.Inf, 0)}
	m.setLimits(l)
	return m
}

// leastBurst is the smallest burst in bytes: with a smaller one, every packet would wait.
const leastBurst = 16 << 10

// setLimits replaces the limits.
func (m *meter) setLimits(l sandpit.NetworkLimits) {
	setBound(m.receive, l.Receive, max(l.Receive/8, leastBurst))
	setBound(m.send, l.Send, max(l.Send/8, leastBurst))
	setBound(m.begin, int64(l.ConnectionRate), int64(l.ConnectionRate))
}

func setBound(l *rate.Limiter, perSecond, burst int64) {
	if perSecond == 0 {
		l.SetLimit(rate.Inf)
		return
	}
	l.SetBurst(int(burst))
	l.SetLimit(rate.Limit(perSecond))
}

// portionOf returns how many of n bytes may pass at once.
func portionOf(l *rate.Limiter, n int) int {
	if l.Limit() == rate.Inf {
		return n
	}
	return min(n, l.Burst())
}

// awaitBytes returns when n more bytes may pass.
func awaitBytes(ctx context.Context, l *rate.Limiter, n int) error {
	for n > 0 && l.Limit() != rate.Inf {
		part := min(n, l.Burst())
		if err := l.WaitN(ctx, part); err == nil {
			n -= part
		} else if ctx.Err() != nil {
			return context.Cause(ctx)
		} // otherwise the limit was replaced meanwhile
	}
	return nil
}

// mayPass reports whether a datagram of n bytes may pass.
func mayPass(l *rate.Limiter, n int) bool {
	return l.Limit() == rate.Inf || l.AllowN(time.Now(), min(n, l.Burst()))
}
