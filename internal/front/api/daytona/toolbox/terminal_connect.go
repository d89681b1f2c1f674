package toolbox

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// controlFrame is a text frame that is no output of a terminal.
type controlFrame struct {
	Type     string `json:"type"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exitCode,omitempty"`
	Reason   string `json:"exitReason,omitempty"`
	Error    string `json:"error,omitempty"`
}

// connectTerminal connects a WebSocket to a terminal. Clients get the error about a missing
// terminal as a control frame.
func connectTerminal(ctx context.Context, c *call) error {
	if err := checkUpgrade(c.r); err != nil {
		return err
	}
	p, t, err := findTerminal(c)
	if err == nil {
		err = p.startTerminal(ctx, t)
	}
	if err != nil {
		return refuseTerminal(ctx, c, err)
	}
	return serveTerminal(ctx, c, t)
}

// refuseTerminal sends an error over a WebSocket.
func refuseTerminal(ctx context.Context, c *call, err error) error {
	k, openErr := openSocket(ctx, c)
	if openErr != nil {
		return openErr
	}
	defer k.close()
	text := api.ProblemOf(c.r.Context(), err).Detail
	if k.sendControl(controlFrame{Status: "error", Error: text}) == nil {
		k.closeWith(websocket.StatusInternalError, closeReason(map[string]string{"error": text}))
	}
	return nil
}

// sendControl sends a control frame.
func (k *socket) sendControl(frame controlFrame) error {
	frame.Type = "control"
	text, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return k.sendLast(websocket.MessageText, text, endTimeout)
}

// closeReason returns a value as the reason of a close frame; "" if it is too long for one.
func closeReason(value any) string {
	text, err := json.Marshal(value)
	if err != nil || len(text) > maxReason-3 {
		return ""
	}
	return string(text)
}

// serveTerminal connects a WebSocket to a terminal until either side ends. The terminal
// continues without the client.
func serveTerminal(ctx context.Context, c *call, t *terminal) error {
	k, err := openSocket(ctx, c)
	if err != nil {
		return err
	}
	defer k.close()
	if err := k.sendControl(controlFrame{Status: "connected"}); err != nil {
		return nil // the client has disconnected
	}
	k.receive(func(_ websocket.MessageType, frame []byte) error {
		if err := t.input.Write(k.ctx, frame); err != nil {
			<-k.ctx.Done() // the shell reads no more, but may still write
			return err
		}
		return nil
	})
	err = t.show(k.ctx, func(p []byte) error { return k.send(websocket.MessageBinary, p) })
	if !k.hasClient() {
		return nil
	}
	if err == nil {
		<-t.ended // follows the end of the output
		k.endTerminal(t.result)
		return nil
	}
	k.endTerminal(terminalResult{ExitCode: exitKilled, Reason: "the sandbox has stopped"})
	return nil
}

// exitKilled is the exit code of a program that SIGKILL has ended.
const exitKilled = 137

// endTerminal reports the end of a terminal, as a frame to clients that can use it, and as the
// reason of the close frame.
func (k *socket) endTerminal(result terminalResult) {
	wantsFrame := slices.ContainsFunc(offeredProtocols(k.call.r), func(name string) bool { return strings.EqualFold(name, exitProtocol) })
	if wantsFrame && k.sendControl(controlFrame{Status: "exited", ExitCode: &result.ExitCode, Reason: result.Reason}) != nil {
		return // the client has disconnected
	}
	k.closeWith(websocket.StatusNormalClosure, closeReason(result))
}

// show passes what a terminal shows to send until it ends, or ctx: what no client has got yet,
// and all that follows.
func (t *terminal) show(ctx context.Context, send func([]byte) error) error {
	t.mu.Lock()
	at := t.seen
	t.mu.Unlock()
	for {
		part, next, ended, changed := t.screen.readAt(at)
		at = next
		if len(part.data) > 0 {
			if err := send(part.data); err != nil {
				return err
			}
			t.markSeen(at)
			continue
		}
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// markSeen records how much clients have got.
func (t *terminal) markSeen(at logPosition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.part > t.seen.part || at.part == t.seen.part && at.offset > t.seen.offset {
		t.seen = at
	}
}
