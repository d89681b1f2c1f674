package sshd

import (
	"encoding/binary"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

const (
	// openPacket is the type of a request to open a file.
	openPacket = 3
	// packetHead is the length of a packet and its type.
	packetHead = 5
)

// orderly is a channel of SFTP on which nothing comes after a request to open a file until
// that has been answered. Clients wait for the answer anyway, except those that guess it:
// with these the library's goroutines would race for the file.
type orderly struct {
	ssh.Channel

	head  []byte // of a packet, that is not read yet
	rest  int64  // bytes of the packet that come after it
	opens bool   // the packet opens a file

	mu          sync.Mutex
	changed     *sync.Cond
	asked, told int // packets either way
	closed      bool
	out         []byte // the length of an answer, as far as it was written
	outRest     int64  // bytes of the answer that come after it
}

func newOrderly(c ssh.Channel) *orderly {
	o := &orderly{Channel: c}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// Read implements io.Reader. It is called by one goroutine.
func (o *orderly) Read(b []byte) (int, error) {
	if len(o.head) == 0 && o.rest == 0 {
		if err := o.nextPacket(); err != nil {
			return 0, err
		}
	}
	if len(o.head) > 0 {
		n := copy(b, o.head)
		o.head = o.head[n:]
		return n, nil
	}
	n, err := o.Channel.Read(b[:min(int64(len(b)), o.rest)])
	o.rest -= int64(n)
	return n, err
}

// nextPacket reads the head of a packet, when its turn has come.
func (o *orderly) nextPacket() error {
	o.mu.Lock()
	for o.opens && o.told < o.asked && !o.closed {
		o.changed.Wait()
	}
	o.asked++
	o.mu.Unlock()
	head := make([]byte, packetHead)
	if _, err := io.ReadFull(o.Channel, head); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(head))
	if length == 0 {
		return io.ErrUnexpectedEOF // no packet has this size
	}
	o.head, o.rest, o.opens = head, length-1, head[4] == openPacket
	return nil
}

// Write implements io.Writer.
func (o *orderly) Write(b []byte) (int, error) {
	n, err := o.Channel.Write(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.countAnswers(b[:n])
	o.closed = o.closed || err != nil
	o.changed.Broadcast()
	return n, err
}

// countAnswers counts the answers that were written. The lock is held.
func (o *orderly) countAnswers(b []byte) {
	for len(b) > 0 {
		if o.outRest == 0 {
			n := min(len(b), 4-len(o.out))
			o.out = append(o.out, b[:n]...)
			b = b[n:]
			if len(o.out) < 4 {
				return
			}
			o.outRest, o.out = int64(binary.BigEndian.Uint32(o.out)), o.out[:0]
			continue
		}
		n := min(int64(len(b)), o.outRest)
		b = b[n:]
		if o.outRest -= n; o.outRest == 0 {
			o.told++
		}
	}
}

// Close implements io.Closer.
func (o *orderly) Close() error {
	o.mu.Lock()
	o.closed = true
	o.changed.Broadcast()
	o.mu.Unlock()
	return o.Channel.Close()
}
