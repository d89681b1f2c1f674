package toolbox

import (
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// maxLog is how many bytes of the output of a command are stored, and maxScreen of a
	// terminal; the oldest are dropped first.
	maxLog    = 4 << 20
	maxScreen = 256 << 10
	// partSize is the maximum number of bytes of a part, and partCost what each takes in
	// addition.
	partSize = 32 << 10
	partCost = 64
)

// outputPart is a piece of one output.
type outputPart struct {
	stderr bool
	data   []byte // grows by appending only, so that readers may keep what they have
}

// outputLog is the recorded output of a command for any number of readers: up to a limit, and
// less when the account is used up. All methods may be called concurrently.
type outputLog struct {
	limit   int
	account *memory.Account

	mu      sync.Mutex
	first   int // number of the oldest stored part
	parts   []outputPart
	size    int // of the stored parts, with their costs
	ended   bool
	changed chan struct{} // closed at the next change
}

func newOutputLog(limit int, account *memory.Account) *outputLog {
	return &outputLog{limit: limit, account: account, changed: make(chan struct{})}
}

// add records output.
func (l *outputLog) add(stderr bool, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		n := min(len(p), partSize)
		last := len(l.parts) - 1
		extends := last >= 0 && l.parts[last].stderr == stderr && len(l.parts[last].data) < partSize
		if extends {
			n = min(n, partSize-len(l.parts[last].data))
		}
		if l.reserve(n + partCost) {
			l.append(extends, stderr, p[:n])
		}
		p = p[n:]
	}
	l.notify()
}

// append adds output for which room was reserved, to the last part if it extends that and making
// room has not dropped it.
func (l *outputLog) append(extends, stderr bool, p []byte) {
	if extends && len(l.parts) > 0 {
		last := &l.parts[len(l.parts)-1]
		last.data = append(last.data, p...)
		l.size -= partCost
		l.account.Return(partCost)
		return
	}
	l.parts = append(l.parts, outputPart{stderr, append([]byte(nil), p...)})
}

// reserve makes room for n more bytes. It reports false if there is no memory for them.
func (l *outputLog) reserve(n int) bool {
	for l.size+n > l.limit && len(l.parts) > 0 {
		l.drop()
	}
	for l.account.Reserve(int64(n)) != nil {
		if len(l.parts) == 0 {
			return false
		}
		l.drop()
	}
	l.size += n
	return true
}

// drop drops the oldest part.
func (l *outputLog) drop() {
	n := len(l.parts[0].data) + partCost
	l.parts[0] = outputPart{}
	l.parts = l.parts[1:]
	l.first++
	l.size -= n
	l.account.Return(int64(n))
}

// Write implements io.Writer for the standard output. It never fails.
func (l *outputLog) Write(p []byte) (int, error) {
	l.add(false, p)
	return len(p), nil
}

// end marks the end of the output.
func (l *outputLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.notify()
}

// release drops the stored output.
func (l *outputLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.parts) > 0 {
		l.drop()
	}
	l.ended = true
	l.notify()
}

// notify wakes the readers. The caller holds the lock.
func (l *outputLog) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// logPosition is a position in an outputLog: a byte of a part. The zero value is the beginning.
type logPosition struct{ part, offset int }

// readAt returns the output of one stream after a position, and the position after it. Without
// output, ended reports whether there will be none, and changed signals a change.
func (l *outputLog) readAt(at logPosition) (part outputPart, next logPosition, ended bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.part < l.first {
		at = logPosition{l.first, 0}
	}
	for i := at.part - l.first; i < len(l.parts); i++ {
		p := l.parts[i]
		if at.offset < len(p.data) {
			return outputPart{p.stderr, p.data[at.offset:len(p.data):len(p.data)]}, logPosition{at.part, len(p.data)}, false, nil
		}
		if i+1 < len(l.parts) {
			at = logPosition{at.part + 1, 0}
		}
	}
	return outputPart{}, at, l.ended, l.changed
}

// logTexts are the stored output of a command: both outputs together, and each.
type logTexts struct {
	Output string `json:"output"`
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

// texts returns the stored output.
func (l *outputLog) texts() logTexts {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all, out, err strings.Builder
	for _, p := range l.parts {
		all.Write(p.data)
		if p.stderr {
			err.Write(p.data)
		} else {
			out.Write(p.data)
		}
	}
	return logTexts{toText(all.String()), toText(out.String()), toText(err.String())}
}

// markedText returns the stored output as one text, in which each part has a prefix.
func (l *outputLog) markedText(prefix func(stderr bool) []byte) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all strings.Builder
	for _, p := range l.parts {
		all.Write(prefix(p.stderr))
		all.Write(p.data)
	}
	return toText(all.String())
}
