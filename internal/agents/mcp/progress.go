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
	// progressInterval is the interval of progress notifications for a call without output.
	progressInterval = 5 * time.Second
	// outputInterval is the minimum interval of notifications about new output.
	outputInterval = time.Second
)

// reportProgress sends progress notifications with the last output of a call's command, if the
// client has requested them, until stop is called.
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
				// The server detects a closed connection.
				_ = r.Session.NotifyProgress(ctx, progressParams(r, token, now.Sub(begun), lines))
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// progressParams returns a notification with the duration of a call. The progress value increases
// each time, as the protocol requires.
func progressParams(r *sdk.CallToolRequest, token any, took time.Duration, lines string) *sdk.ProgressNotificationParams {
	seconds := took.Round(100 * time.Millisecond).Seconds()
	message := fmt.Sprintf("%s has been running for %.0f s", r.Params.Name, seconds)
	if lines != "" {
		message += "\n" + lines
	}
	return &sdk.ProgressNotificationParams{ProgressToken: token, Progress: seconds, Message: message}
}
