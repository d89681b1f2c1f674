package browser

import (
	"io"
	"sync"
)

// inputBuffer is the input of a process: what is put is read, in order. It never keeps who puts
// waiting, so that an answer can be given from where messages arrive.
type inputBuffer struct {
	mu     sync.Mutex
	more   sync.Cond
	data   []byte
	closed bool
}

func newInputBuffer() *inputBuffer {
	f := &inputBuffer{}
	f.more.L = &f.mu
	return f
}

// putMessage reports whether there was room for a message.
func (f *inputBuffer) putMessage(message []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.data)+len(message) > maxMessage {
		return false
	}
	f.data = append(f.data, message...)
	f.more.Broadcast()
	return true
}

// Read implements io.Reader.
func (f *inputBuffer) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.data) == 0 && !f.closed {
		f.more.Wait()
	}
	if len(f.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.data)
	f.data = f.data[n:]
	return n, nil
}

// close ends the input after what has been put. It is idempotent.
func (f *inputBuffer) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.more.Broadcast()
}
