package commandlog

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
)

// maxPiece bounds what Next returns at once, in bytes.
const maxPiece = 32 << 10

// ErrAhead is for a place that a log has not reached.
var ErrAhead = errors.New("the log is not as long as that")

// Piece is something of one stream: data, or how much of it is missing.
type Piece struct {
	Stream Stream
	Offset int64
	// Data is valid until the next call. It is nil for what is missing.
	Data []byte
	// Missing is how many bytes were dropped, or 0.
	Missing int64
}

// Reader reads a log in order, while it grows. It is for one goroutine.
type Reader struct {
	log  *Log
	next Offsets // what comes next of each stream

	segment  int64   // which segment, counted from the first there ever was
	entered  bool    // that segment was looked at: the fields below are about it
	pos      int     // where in it a record begins
	done     int     // how much of the record is behind us
	at       Offsets // where that record begins
	stored   []byte  // the segment, if it came from the file
	out      []byte
	segments []byte // buffer of stored
}

// Reader returns a reader of what comes behind from. ErrAhead: the log has less.
func (l *Log) Reader(from Offsets) (*Reader, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for stream := range from {
		if from[stream] < 0 || from[stream] > l.size[stream] {
			return nil, ErrAhead
		}
	}
	r := &Reader{log: l, next: from, segment: l.first}
	for i := range l.segments {
		if end := l.endOf(i); end[Stdout] > from[Stdout] || end[Stderr] > from[Stderr] {
			break
		}
		if i < len(l.segments)-1 {
			r.segment++
		}
	}
	return r, nil
}

// At returns how much of each stream is behind the reader.
func (r *Reader) At() Offsets { return r.next }

// Next returns what comes next, or false if there is no more for now.
func (r *Reader) Next() (Piece, bool) {
	for {
		if r.stored != nil {
			if p, ok := r.nextPiece(r.stored, true); ok {
				return p, true
			}
			r.nextSegment()
		}
		p, ok, load := r.nextFromMemory()
		if load == nil {
			return p, ok
		}
		r.loadSegment(*load)
	}
}

// nextFromMemory reads from memory. It returns the segment that must be read from the file
// first, if it is one.
func (r *Reader) nextFromMemory() (p Piece, ok bool, load *segment) {
	l := r.log
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for {
		if r.segment < l.first {
			r.segment, r.entered = l.first, false
		}
		i := int(r.segment - l.first)
		if i >= len(l.segments) {
			if len(l.segments) == 0 {
				p, ok = r.missingUpTo(l.size)
			}
			return p, ok, nil
		}
		g := &l.segments[i]
		if !r.entered {
			if p, ok := r.missingUpTo(g.start); ok {
				return p, true, nil
			}
			r.entered, r.pos, r.done, r.at = true, 0, 0, g.start
		}
		last := i == len(l.segments)-1
		switch {
		case g.isLost():
			if p, ok := r.missingUpTo(l.endOf(i)); ok || last {
				return p, ok, nil
			}
		case g.slot != noSlot:
			copied := *g
			return p, false, &copied
		default:
			if p, ok := r.nextPiece(g.buf, !last || !l.open); ok {
				return p, true, nil
			}
			if last {
				return p, false, nil
			}
		}
		r.nextSegment()
	}
}

// nextSegment goes on to the next segment.
func (r *Reader) nextSegment() {
	r.segment++
	r.entered, r.stored = false, nil
}

// missingUpTo returns what lies between the reader and a place, as missing.
func (r *Reader) missingUpTo(end Offsets) (Piece, bool) {
	for stream := range end {
		if n := end[stream] - r.next[stream]; n > 0 {
			p := Piece{Stream: Stream(stream), Offset: r.next[stream], Missing: n}
			r.next[stream] = end[stream]
			return p, true
		}
	}
	return Piece{}, false
}

// loadSegment reads a segment from the file. One that is not as it was is lost, unless
// it was dropped meanwhile anyway.
func (r *Reader) loadSegment(g segment) {
	s := r.log.store
	if r.segments == nil {
		r.segments = make([]byte, SegmentSize)
	}
	b := r.segments[:g.length]
	_, err := s.file.ReadAt(b, int64(g.slot)*SegmentSize)
	if err == nil && maphash.Bytes(s.seed, b) == g.sum {
		r.stored = b
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := int(r.segment - r.log.first)
	if i >= 0 && i < len(r.log.segments) && r.log.segments[i].slot == g.slot && r.log.segments[i].sum == g.sum {
		r.log.dropSegment(i)
	}
}

// nextPiece returns the next piece of a segment, or false if there is none; complete
// says that its last record does not grow any more.
func (r *Reader) nextPiece(b []byte, complete bool) (Piece, bool) {
	for {
		stream, data, ok := parseRecord(b, r.pos)
		if !ok {
			return Piece{}, false
		}
		// What is known already is not told.
		if known := r.next[stream] - r.at[stream]; int64(r.done) < known {
			r.done = int(min(known, int64(len(data))))
		}
		if rest := data[r.done:]; len(rest) > 0 {
			r.out = append(r.out[:0], rest[:min(len(rest), maxPiece)]...)
			p := Piece{Stream: stream, Offset: r.at[stream] + int64(r.done), Data: r.out}
			r.done += len(r.out)
			r.next[stream] += int64(len(r.out))
			return p, true
		}
		end := r.pos + headerSize + len(data)
		if !complete && end == len(b) {
			return Piece{}, false
		}
		r.at[stream] += int64(len(data))
		r.pos, r.done = end, 0
	}
}

// parseRecord returns the record that begins at pos, or false if there is none.
func parseRecord(b []byte, pos int) (Stream, []byte, bool) {
	if pos < 0 || len(b)-pos <= headerSize {
		return 0, nil, false
	}
	stream, n := Stream(b[pos]), int(binary.BigEndian.Uint16(b[pos+1:]))
	if stream >= streams || n == 0 || n > len(b)-pos-headerSize {
		return 0, nil, false
	}
	return stream, b[pos+headerSize:][:n], true
}
