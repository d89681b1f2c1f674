package stdioconn

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// kind is the purpose of a frame.
type kind byte

const (
	kindOpen   kind = 1 + iota // from the client: open a connection
	kindData                   // bytes, or only a confirmation
	kindProbe                  // request for a confirmation
	kindResume                 // the same, after which the receiver must probe too: its data may have been lost
	kindAnswer                 // confirmation of the bytes before seq
	kindClose                  // the connection has ended
	kindGone                   // no such connection
)

// frame is one message. Offsets count the bytes of a connection in one direction.
type frame struct {
	kind  kind
	conn  uint64
	seq   uint64 // offset of the payload; in kindProbe and its answer, the number of bytes sent before
	ack   uint64 // offset up to which the sender of the frame has received everything
	limit uint64 // offset up to which the sender has buffer space
	// payload has at most maxPayload bytes.
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

// parser finds frames in received data and skips everything else.
type parser struct {
	buf []byte
}

// parseFrames adds bytes and calls found with each complete frame. A payload is valid until the next call.
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

// isWaiting reports whether an incomplete frame waits for more data.
func (p *parser) isWaiting() bool { return len(p.buf) > 0 }

// skipTorn skips the beginning of a frame whose end did not arrive: its sender may be gone. Complete frames may
// follow it.
func (p *parser) skipTorn(found func(frame)) {
	if len(p.buf) == 0 {
		return
	}
	rest := p.buf[1:]
	p.buf = nil
	p.parseFrames(rest, found)
}

// parseFrame returns how many bytes at the beginning of b were used, and the frame in them if whole. Size 0 means
// that more data is needed.
func parseFrame(b []byte) (f frame, size int, whole bool) {
	start := frameMagic()
	i := bytes.Index(b, start)
	if i < 0 { // the last bytes may begin a frame
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
