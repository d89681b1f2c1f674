package commandlog

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
)

// maxPiece bounds what Next returns at once, in bytes.
const maxPiece = 32 << 10

// ErrAhead is the error for an offset beyond the end of a log.
var ErrAhead = errors.New("the offset is beyond the end of the log")

// Piece is a part of one stream: data, or the length of missing data.
type Piece struct {
	Stream Stream
	Offset int64
	// Data is valid until the next call. It is nil for missing data.
	Data []byte
	// Missing is how many bytes were dropped, or 0.
	Missing int64
}

// Reader reads a log in order while it grows. It is for one goroutine.
type Reader struct {
	log  *Log
	next Offsets // next offset of each stream

	segment  int64   // index of the segment, counted from the first one ever
	entered  bool    // the fields below are valid for that segment
	pos      int     // where the current record begins in it
	done     int     // how much of the record was read
	at       Offsets // offsets where that record begins
	stored   []byte  // the segment, if it was read from the file
	out      []byte
	segments []byte // buffer of stored
}

// Reader returns a reader that begins at from. ErrAhead: the log is shorter.
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

// At returns the offsets of the reader.
func (r *Reader) At() Offsets { return r.next }

// Next returns the next piece, or false if there is no more for now.
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

// nextFromMemory returns the next piece from memory. It returns the segment that must first be read from the file, if
// any.
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

// nextSegment moves the reader to the next segment.
func (r *Reader) nextSegment() {
	r.segment++
	r.entered, r.stored = false, nil
}

// missingUpTo returns the bytes between the reader and end as missing.
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

// loadSegment reads a segment from the file. A damaged one is dropped, unless it was dropped meanwhile.
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

// nextPiece returns the next piece of a segment, or false at its end; complete says that its last record cannot
// grow.
func (r *Reader) nextPiece(b []byte, complete bool) (Piece, bool) {
	for {
		stream, data, ok := parseRecord(b, r.pos)
		if !ok {
			return Piece{}, false
		}
		// Skip what the caller already has.
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

// parseRecord returns the record at pos, or false if no record begins there.
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
