package tool

import (
	"bytes"
	"context"
	"strings"
	"sync"
)

const (
	// maxLive bounds the stored output, in bytes.
	maxLive = 16 << 10
	// maxLines and maxLinesText bound the result of Lines, the latter in bytes.
	maxLines     = 10
	maxLinesText = 2 << 10
)

// Live is the newest output of the command of a running call. All methods may be called
// concurrently.
type Live struct {
	mu      sync.Mutex
	session *Session // nil: nothing writes to it
	text    []byte
	cut     bool // the beginning of text was dropped
}

type liveKey struct{}

// WithLive returns a context for a call, and the Live output of its command. Only some tools write to
// it.
func WithLive(ctx context.Context) (context.Context, *Live) {
	l := &Live{}
	return context.WithValue(ctx, liveKey{}, l), l
}

// liveOutput returns a function for the output of a command, or nil if the context has no Live.
func (s *Session) liveOutput(ctx context.Context) func(stderr bool, p []byte) {
	l, ok := ctx.Value(liveKey{}).(*Live)
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session, l.text, l.cut = s, nil, false
	return l.writeOutput
}

func (l *Live) writeOutput(_ bool, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if over := len(l.text) - maxLive; over > 0 {
		l.text = append(l.text[:0], l.text[over:]...)
		l.cut = true
	}
}

// Lines returns the last complete lines, up to 10 lines and 2 KiB, as valid UTF-8 without secrets.
func (l *Live) Lines() string {
	l.mu.Lock()
	session, text, cut := l.session, string(l.text[:1+bytes.LastIndexByte(l.text, '\n')]), l.cut
	l.mu.Unlock()
	if session == nil {
		return ""
	}
	if cut { // the first line may end with a part of a secret
		_, text, _ = strings.Cut(text, "\n")
	}
	lines := strings.Split(strings.TrimRight(session.secretSet().maskLines(text), "\n"), "\n")
	text = strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
	return strings.ToValidUTF8(text[max(0, len(text)-maxLinesText):], "")
}
