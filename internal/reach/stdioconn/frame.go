package stdioconn

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// kind says what a frame is for.
type kind byte

const (
	kindOpen   kind = 1 + iota // client: begin a connection
	kindData                   // bytes, or none: then only what both have got
	kindProbe                  // tell me what you have got
	kindResume                 // the same, and ask me too: some of yours may be lost
	kindAnswer                 // this is what I have got of those before seq
	kindClose                  // the connection has ended
	kindGone                   // there is no such connection
)

// frame is one message. Offsets count the bytes of a connection in one direction.
type frame struct {
	kind  kind
	conn  uint64
	seq   uint64 // offset of the payload; of kindProbe and its answer, how much was sent before
	ack   uint64 // offset up to which the sender of the frame has got everything
	limit uint64 // offset up to which it has room
	// payload is at most maxPayload bytes.
	payload []byte
}

const (
	headerSize = 4 + 1 + 4*8 + 2 + 4 + 4 // magic, kind, numbers, length, two checksums
	maxPayload = 16 << 10
	maxFrame   = headerSize + maxPayload
)

// frameMagic begins every frame.
func frameMagic() []byte { return []byte{0x53, 0xd7, 0x1e, 0x9b} }

var table = crc32.MakeTable(crc32.Castagnoli)

// appendFrame appends the encoded frame.
func appendFrame(b []byte, f frame) []byte {
	start := len(b)
	b = append(b, frameMagic()...)
	b = append(b, byte(f.kind))
	for _, n := range []uint64{f.conn, f.seq, f.ack, f.limit} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.payload))) //nolint:gosec // at most maxPayload
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(f.payload, table))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], table))
	return append(b, f.payload...)
}

// parser finds frames in what comes. Everything that is none is skipped.
type parser struct {
	buf []byte
}

// parseFrames takes more bytes and calls found with each whole frame. A payload is valid
// until the next call.
func (p *parser) parseFrames(data []byte, found func(frame)) {
	p.buf = append(p.buf, data...)
	rest := p.buf
	for {
		f, size, whole := parseFrame(rest)
		if whole {
			found(f)
		}
		rest = rest[size:]
		if size == 0 {
			break
		}
	}
	p.buf = append(p.buf[:0], rest...)
}

// isWaiting reports whether the beginning of a frame waits for its end.
func (p *parser) isWaiting() bool { return len(p.buf) > 0 }

// skipTorn skips the beginning of a frame whose end does not come: whoever sent it
// may be no more. What is behind it may hold whole frames.
func (p *parser) skipTorn(found func(frame)) {
	if len(p.buf) == 0 {
		return
	}
	rest := p.buf[1:]
	p.buf = nil
	p.parseFrames(rest, found)
}

// parseFrame returns how many bytes at the beginning of b are done with, and the frame
// that they are, if they are one. 0 means that more must come.
func parseFrame(b []byte) (f frame, size int, whole bool) {
	start := frameMagic()
	i := bytes.Index(b, start)
	if i < 0 { // the last bytes may be the beginning of one
		keep := min(len(b), len(start)-1)
		for keep > 0 && !bytes.HasPrefix(start, b[len(b)-keep:]) {
			keep--
		}
		return f, len(b) - keep, false
	}
	if i > 0 {
		return f, i, false
	}
	if len(b) < headerSize {
		return f, 0, false
	}
	head := b[:headerSize]
	length := int(binary.BigEndian.Uint16(head[37:]))
	if crc32.Checksum(head[:headerSize-4], table) != binary.BigEndian.Uint32(head[headerSize-4:]) || length > maxPayload {
		return f, 1, false
	}
	if len(b) < headerSize+length {
		return f, 0, false
	}
	f = frame{
		kind: kind(head[4]), conn: binary.BigEndian.Uint64(head[5:]), seq: binary.BigEndian.Uint64(head[13:]),
		ack: binary.BigEndian.Uint64(head[21:]), limit: binary.BigEndian.Uint64(head[29:]),
		payload: b[headerSize : headerSize+length],
	}
	if crc32.Checksum(f.payload, table) != binary.BigEndian.Uint32(head[39:]) {
		return frame{}, 1, false
	}
	return f, headerSize + length, true
}
