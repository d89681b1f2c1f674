package memory

import "io"

// ValueCost is how many bytes of memory each value of a JSON text takes besides its text: as an element
// of a list or map, while that grows, and in the errors of its validation.
const ValueCost = 128

// ValueCounter counts the values of a JSON text that arrives in pieces, or more, without decoding it.
// What is not JSON is counted somehow. The zero value is ready for use.
type ValueCounter struct{ inString, escaped bool }

// Count returns how many values begin in the next piece.
func (c *ValueCounter) Count(piece []byte) (n int64) {
	for _, b := range piece {
		switch {
		case c.escaped:
			c.escaped = false
		case c.inString:
			c.escaped, c.inString = b == '\\', b != '"'
		case b == '"':
			c.inString = true
		case b == ',' || b == '[' || b == '{':
			n++
		}
	}
	return n
}

// MeteredJSON is Metered for a JSON text: it also reserves ValueCost for each value.
func MeteredJSON(r io.Reader, account *Account, cost int64) io.Reader {
	if account == nil {
		return r
	}
	return &meteredJSON{r: Metered(r, account, cost), account: account}
}

type meteredJSON struct {
	r       io.Reader
	account *Account
	values  ValueCounter
}

// Read implements io.Reader.
func (m *meteredJSON) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if reserveErr := m.account.Reserve(m.values.Count(b[:n]) * ValueCost); reserveErr != nil {
		return 0, reserveErr
	}
	return n, err
}
