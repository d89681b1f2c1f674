package mcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

const (
	// progressInterval is how often a client that wants progress hears of a call that takes long
	// and says nothing.
	progressInterval = 5 * time.Second
	// outputInterval is how often it hears of new output at most.
	outputInterval = time.Second
)

// reportProgress tells a client that asked for it that a call goes on, and what its command has
// put out last, until it is stopped.
func (c *connection) reportProgress(ctx context.Context, r *sdk.CallToolRequest, live *tool.Live) (stop func()) {
	token := r.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(outputInterval)
		defer ticker.Stop()
		begun := time.Now()
		told, last := begun, ""
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				lines := live.Lines()
				if lines == last && now.Sub(told) < progressInterval {
					continue
				}
				told, last = now, lines
				// A client that has gone is noticed by who serves it.
				_ = r.Session.NotifyProgress(ctx, progressParams(r, token, now.Sub(begun), lines))
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// progressParams says how long a call goes on. Its count goes up each time, as the protocol asks.
func progressParams(r *sdk.CallToolRequest, token any, took time.Duration, lines string) *sdk.ProgressNotificationParams {
	seconds := took.Round(100 * time.Millisecond).Seconds()
	message := fmt.Sprintf("%s runs for %.0f s", r.Params.Name, seconds)
	if lines != "" {
		message += "\n" + lines
	}
	return &sdk.ProgressNotificationParams{ProgressToken: token, Progress: seconds, Message: message}
}
