package memory

import (
	"context"
	"errors"
	"io"
	"slices"
)

// ReadAll is io.ReadAll of up to most bytes. It reserves cost bytes of the account of ctx
// for each byte of its buffer. Longer content is cut: to detect that, the caller has r return
// an error or asks for one more byte.
//
// Exhausted: the account is used up.
func ReadAll(ctx context.Context, r io.Reader, most, cost int64) ([]byte, error) {
	account := AccountOf(ctx)
	if account == nil {
		b, err := io.ReadAll(io.LimitReader(r, most+1))
		return b[:min(int64(len(b)), most)], err
	}
	var b []byte
	for {
		if len(b) == cap(b) {
			// One byte more than there may be, so that the end of r is seen.
			size := int(min(max(2*int64(cap(b)), firstPage), most+1))
			if err := account.Reserve(int64(size-cap(b)) * cost); err != nil {
				return nil, err
			}
			b = slices.Grow(b, size-len(b))[:len(b):size]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if int64(len(b)) > most {
			return b[:most], err
		}
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// Metered returns a reader that reserves cost bytes of an account for each byte that is
// read from r. Its errors are those of r, and Exhausted.
func Metered(r io.Reader, account *Account, cost int64) io.Reader {
	if account == nil {
		return r
	}
	return &metered{r: r, account: account, cost: cost}
}

type metered struct {
	r       io.Reader
	account *Account
	cost    int64
}

// Read implements io.Reader.
func (m *metered) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if reserveErr := m.account.Reserve(int64(n) * m.cost); reserveErr != nil {
		return 0, reserveErr
	}
	return n, err
}
