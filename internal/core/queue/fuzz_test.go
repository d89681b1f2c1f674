package queue

import (
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// FuzzReadMessage reads messages of an untrusted server.
func FuzzReadMessage(f *testing.F) {
	body := `{"topic":"server","sandbox":"saaaaaaaaaaaaaaaaaaa","kind":"idle","metadata":{"a":"b"},"created_at":1}`
	f.Add("id", body, "1893553445006", "3", "no answer")
	f.Add("", "{", "", "", "\xff")
	f.Add("x", `{"created_at":1e300}`, "-1", "-1", "")
	f.Fuzz(func(t *testing.T, id, body, due, attempts, cause string) {
		m, err := readMessage([]string{id, body, due, attempts, cause})
		if err != nil {
			if !errors.Is(err, sandpit.Internal) {
				t.Errorf("error %v, want Internal", err)
			}
			return
		}
		if err := m.validate(); err != nil {
			t.Errorf("an invalid message was accepted: %v", err)
		}
		if m.Attempts < 0 || len(m.LastError) > MaxError || !utf8.ValidString(m.LastError) {
			t.Errorf("out of bounds: %+v", m)
		}
	})
}

func TestMessagesOddReplies(t *testing.T) {
	t.Parallel()
	for _, reply := range []any{nil, "x", int64(1), []any{"x"}, []any{[]any{"only", "two"}}, []any{[]any{"a", "b", "c", "d", int64(5)}}} {
		if _, err := parseMessages(reply); !errors.Is(err, sandpit.Internal) {
			t.Errorf("%#v: error %v, want Internal", reply, err)
		}
	}
}
