package commandlog

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Stream is one of the streams of a log.
type Stream uint8

// The streams.
const (
	Stdout Stream = iota
	Stderr
	streams = 2
)

// Offsets are positions in the streams of a log, in bytes.
type Offsets [streams]int64

// A record consists of its stream, the length of its data, and its data.
const (
	headerSize = 3
	maxRecord  = SegmentSize - headerSize
)

// maxSegments bounds the segments of one log, lost ones included.
const maxSegments = 4096

// segment is a sequence of records. It is in memory, in a slot of the file, or lost.
type segment struct {
	start  Offsets
	buf    []byte // nil unless the segment is in memory
	slot   int    // or noSlot
	length int    // bytes used in the slot
	sum    uint64 // hash of these bytes
}

func (g *segment) isLost() bool { return g.buf == nil && g.slot == noSlot }

// Log is the output of one command.
type Log struct {
	store *Store

	// The store's mutex guards the fields below.
	segments []segment
	first    int64 // how many segments came before segments[0]
	open     bool  // the last segment is in memory and can grow
	header   int   // where the last record begins in it, or -1
	size     Offsets
	missing  Offsets // how much is lost, in bytes
	memory   int64   // size of its buffers
	onDisk   int     // segments in the file
	ended    bool
	changed  chan struct{} // closed after an append; nil if no caller waits
}

// NewLog returns an empty log. The caller must call End and then Discard.
func (s *Store) NewLog() *Log {
	l := &Log{store: s, header: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, l)
	return l
}

// Append adds output of a stream. It copies data. After End it does nothing.
func (l *Log) Append(stream Stream, data []byte) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.ended || len(data) == 0 {
		return
	}
	for len(data) > 0 {
		n := l.addRecord(stream, data)
		l.size[stream] += int64(n)
		data = data[n:]
	}
	for i := 0; l.memory > s.limits.LogMemory && i < len(l.segments)-1; i++ {
		if l.segments[i].buf != nil {
			l.spillSegment(i)
		}
	}
	l.removeLost()
	s.limitMemory()
	l.notifyReaders()
}

// addRecord adds a record to the last segment, or extends the last record, and returns how much of data it took.
func (l *Log) addRecord(stream Stream, data []byte) int {
	if !l.open || len(l.lastSegment().buf) > SegmentSize-headerSize-1 {
		l.addSegment()
	}
	g := l.lastSegment()
	room := SegmentSize - len(g.buf)
	if l.header >= 0 && Stream(g.buf[l.header]) == stream {
		n := min(room, len(data))
		l.extendSegment(data[:n])
		length := len(g.buf) - l.header - headerSize
		binary.BigEndian.PutUint16(g.buf[l.header+1:], uint16(length)) //nolint:gosec // a segment is not longer
		return n
	}
	n := min(room-headerSize, len(data))
	l.header = len(g.buf)
	l.extendSegment(binary.BigEndian.AppendUint16([]byte{byte(stream)}, uint16(n))) //nolint:gosec // the same
	l.extendSegment(data[:n])
	return n
}

func (l *Log) lastSegment() *segment { return &l.segments[len(l.segments)-1] }

// addSegment adds an empty segment in memory.
func (l *Log) addSegment() {
	if len(l.segments) >= maxSegments {
		if !l.segments[0].isLost() {
			l.dropSegment(0)
		}
		l.removeLost()
	}
	filled := len(l.segments) > 0 && max(len(l.lastSegment().buf), l.lastSegment().length) > SegmentSize/2
	g := segment{start: l.size, slot: noSlot, buf: l.store.newBuffer(0, filled)}
	l.countMemory(cap(g.buf))
	l.segments = append(l.segments, g)
	l.open, l.header = true, -1
}

// extendSegment appends to the last segment.
func (l *Log) extendSegment(data []byte) {
	g := l.lastSegment()
	if need := len(g.buf) + len(data); need > cap(g.buf) {
		grown := append(l.store.newBuffer(need, need > SegmentSize/4), g.buf...)
		l.countMemory(cap(grown) - cap(g.buf))
		g.buf = grown
	}
	g.buf = append(g.buf, data...)
}

func (l *Log) countMemory(bytes int) {
	l.memory += int64(bytes)
	l.store.memory += int64(bytes)
}

// freeBuffer releases the buffer of a segment.
func (l *Log) freeBuffer(g *segment) {
	l.countMemory(-cap(g.buf))
	l.store.recycleBuffer(g.buf)
	g.buf = nil
	if g == l.lastSegment() {
		l.open = false
	}
}

// spillSegment moves a segment from memory to the file, or drops it.
func (l *Log) spillSegment(i int) {
	s := l.store
	for _, find := range []func(*Log) int{s.freeSlot, s.evictSlot} {
		slot := find(l)
		if slot == noSlot {
			continue
		}
		g := &l.segments[i]
		if _, err := s.file.WriteAt(g.buf, int64(slot)*SegmentSize); err != nil {
			s.releaseSlot(slot) // most likely the disk is full; a slot that was written before has its space
			continue
		}
		g.slot, g.length, g.sum = slot, len(g.buf), maphash.Bytes(s.seed, g.buf)
		l.onDisk++
		l.freeBuffer(g)
		return
	}
	l.dropSegment(i)
}

// spillAll moves all segments in memory to the file.
func (l *Log) spillAll() {
	for i := range l.segments {
		if l.segments[i].buf != nil {
			l.spillSegment(i)
		}
	}
	l.removeLost()
}

// dropSegment drops a segment's data. Its offsets stay until removeLost.
func (l *Log) dropSegment(i int) {
	g := &l.segments[i]
	if g.slot != noSlot {
		l.store.releaseSlot(l.detachSlot(i))
	}
	if g.buf != nil {
		l.freeBuffer(g)
	}
	end := l.endOf(i)
	for stream := range end {
		l.missing[stream] += end[stream] - g.start[stream]
	}
}

// detachSlot removes the slot from a segment and returns it.
func (l *Log) detachSlot(i int) (slot int) {
	g := &l.segments[i]
	slot, g.slot = g.slot, noSlot
	l.onDisk--
	return slot
}

// endOf returns the offsets at the end of a segment.
func (l *Log) endOf(i int) Offsets {
	if i+1 < len(l.segments) {
		return l.segments[i+1].start
	}
	return l.size
}

// removeLost removes the lost segments at the beginning. It keeps the last segment, which may still grow.
func (l *Log) removeLost() {
	n := 0
	for n < len(l.segments)-1 && l.segments[n].isLost() {
		n++
	}
	if n > 0 {
		l.segments = slices.Delete(l.segments, 0, n)
		l.first += int64(n)
	}
}

// End ends the log: nothing is appended any more.
func (l *Log) End() {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	if l.open {
		g := l.lastSegment()
		l.countMemory(len(g.buf) - cap(g.buf))
		g.buf = append(make([]byte, 0, len(g.buf)), g.buf...)
		l.open = false
	}
	s.running = slices.DeleteFunc(s.running, func(r *Log) bool { return r == l })
	s.ended = append(s.ended, l)
	l.notifyReaders()
}

// Discard drops the content of a log, which must have ended. Readers get the rest as missing.
func (l *Log) Discard() {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range l.segments {
		if !l.segments[i].isLost() {
			l.dropSegment(i)
		}
	}
	l.first += int64(len(l.segments))
	l.segments = nil
	s.ended = slices.DeleteFunc(s.ended, func(e *Log) bool { return e == l })
	l.notifyReaders()
}

// Amounts returns how much was appended to each stream, and how much of that was dropped, in bytes.
func (l *Log) Amounts() (size, missing Offsets) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	return l.size, l.missing
}

// Changed returns a channel that is closed when more can be read or when the log has ended.
func (l *Log) Changed() <-chan struct{} {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *Log) notifyReaders() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
