package shell

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// maxPayload bounds the payload of a mark, a status and a directory, in bytes.
const maxPayload = 8 << 10

// marks splits one output of a shell into marks and the text between them. It is not for
// concurrent use.
type marks struct {
	text func([]byte)                    // called with text between marks, maybe in parts
	mark func(kind byte, payload string) // called with each mark
	bad  func(reason string)             // called for an invalid mark
	edge []byte                          // the separator and the token of the call
	held []byte                          // the possible beginning of a mark
}

// expectToken sets the token of the marks from now on.
func (m *marks) expectToken(token string) {
	m.flushHeld()
	m.edge = []byte(separator + token)
}

// writeOutput processes output of the shell.
func (m *marks) writeOutput(p []byte) {
	data := p
	if len(m.held) > 0 {
		data = slices.Concat(m.held, p)
		m.held = nil
	}
	for len(data) > 0 {
		i := bytes.Index(data, m.edge)
		if i < 0 || len(m.edge) == 0 {
			keep := m.partialMark(data)
			m.emitText(data[:len(data)-keep])
			m.held = bytes.Clone(data[len(data)-keep:])
			return
		}
		m.emitText(data[:i])
		data = data[i:]
		rest := data[len(m.edge):]
		end := bytes.Index(rest, m.edge)
		if end < 0 && len(rest) <= maxPayload+len(m.edge) {
			m.held = bytes.Clone(data)
			return
		}
		if end < 1 || end > maxPayload {
			m.bad("a mark without an end")
			data = rest
			continue
		}
		m.mark(rest[0], string(rest[1:end]))
		data = rest[end+len(m.edge):]
	}
}

// flushHeld passes on held bytes that did not become a mark.
func (m *marks) flushHeld() {
	held := m.held
	m.held = nil
	m.emitText(held)
}

func (m *marks) emitText(b []byte) {
	if len(b) > 0 {
		m.text(b)
	}
}

// partialMark returns how many bytes at the end of data may begin a mark.
func (m *marks) partialMark(data []byte) int {
	for n := min(len(data), len(m.edge)-1); n > 0; n-- {
		if bytes.HasSuffix(data, m.edge[:n]) {
			return n
		}
	}
	return 0
}

// parseEnd parses the payload of markEnd on the standard output.
func parseEnd(payload string) (status int, dir string, ok bool) {
	code, dir, ok := strings.Cut(payload, " ")
	status, err := strconv.Atoi(code)
	if !ok || err != nil || status < 0 || status > 255 || len(code) > 3 {
		return 0, "", false
	}
	if !strings.HasPrefix(dir, "/") || strings.ContainsRune(dir, 0) {
		dir = "" // a command may change PWD
	}
	return status, dir, true
}
