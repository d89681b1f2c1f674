package toolbox

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

// The prefixes of the streams in output that is followed: each write begins with one.
var (
	stdoutPrefix = []byte{1, 1, 1}
	stderrPrefix = []byte{2, 2, 2}
)

const (
	headerVersion = "X-Daytona-SDK-Version"
	headerSplit   = "X-Daytona-Split-Output"
	// headerSource names the SDK of a client, and sourceGo is that for Go.
	headerSource = "X-Daytona-Source"
	sourceGo     = "sdk-go"
	// splitMinor is the first version, 0.167, of clients that expect the two outputs separately.
	splitMinor = 167
	// markMinor is the first version, 0.27, of clients that separate the two outputs of a text
	// by the prefixes in it.
	markMinor = 27
)

// clientVersion returns the version of a client, from a header or a subprotocol, or "".
func clientVersion(r *http.Request) string {
	if v := r.Header.Get(headerVersion); v != "" {
		return v
	}
	for _, name := range offeredProtocols(r) {
		if key, v, ok := strings.Cut(name, "~"); ok && strings.EqualFold(key, headerVersion) {
			return v
		}
	}
	return ""
}

// splitsOutput reports whether a client expects the two outputs of a command separately.
func splitsOutput(r *http.Request) bool {
	if strings.EqualFold(r.Header.Get(headerSplit), "true") {
		return true
	}
	return isFrom(clientVersion(r), splitMinor)
}

// isFrom reports whether a version is 0.MINOR or later.
func isFrom(version string, minimum int) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	return err == nil && (major > 0 || minor >= minimum)
}

// readLogs responds with the output of a command in a session.
func readLogs(ctx context.Context, c *call) error {
	cmd, err := findCommand(c)
	if err != nil {
		return err
	}
	return sendLogs(ctx, c, cmd.log)
}

// sendLogs responds with recorded output: what there is, as JSON or as text for older clients,
// or everything until it ends, over a WebSocket or as the body of a response.
func sendLogs(ctx context.Context, c *call, record *outputLog) error {
	switch {
	case isUpgrade(c.r):
		return followOnSocket(ctx, c, record)
	case c.r.URL.Query().Get("follow") == "true":
		return followInBody(ctx, c, record)
	case splitsOutput(c.r):
		return c.writeJSON(http.StatusOK, record.texts())
	}
	c.w.setWriteDeadline(writeTimeout)
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	prefix := noPrefix
	if isFrom(clientVersion(c.r), markMinor) {
		prefix = streamPrefix
	}
	_, _ = io.WriteString(c.w, record.markedText(prefix)) // an error means that the client has disconnected
	return nil
}

// prefixFunc returns the prefix of a part of output that is followed. Clients that declare a
// version before 0.27 show the bytes as they are.
func prefixFunc(r *http.Request) func(stderr bool) []byte {
	if v := clientVersion(r); v != "" && !isFrom(v, markMinor) {
		return noPrefix
	}
	return streamPrefix
}

func noPrefix(bool) []byte { return nil }

// streamPrefix returns the prefix of a part of one of the two outputs.
func streamPrefix(stderr bool) []byte {
	if stderr {
		return stderrPrefix
	}
	return stdoutPrefix
}

// followLog passes output to send until it ends, or ctx.
func followLog(ctx context.Context, record *outputLog, prefix func(stderr bool) []byte, send func([]byte) error) error {
	var at logPosition
	for {
		part, next, ended, changed := record.readAt(at)
		at = next
		if len(part.data) > 0 {
			if err := send(append(append([]byte(nil), prefix(part.stderr)...), part.data...)); err != nil {
				return err
			}
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

// followInBody sends output as a body without a length.
func followInBody(ctx context.Context, c *call, record *outputLog) error {
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.w.Header().Set("X-Accel-Buffering", "no") // proxies must not buffer
	if err := c.w.sendPart(nil); err != nil {
		return err
	}
	return followLog(ctx, record, prefixFunc(c.r), c.w.sendPart)
}

// followOnSocket sends output as binary frames, and closes the WebSocket at its end.
func followOnSocket(ctx context.Context, c *call, record *outputLog) error {
	conn, err := openSocket(ctx, c)
	if err != nil {
		return err
	}
	defer conn.close()
	conn.ignoreInput()
	err = followLog(conn.ctx, record, prefixFunc(c.r), func(p []byte) error { return conn.send(websocket.MessageBinary, p) })
	conn.finish(err)
	return nil
}
