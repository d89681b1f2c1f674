package memory_test

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// TestMeteredJSON counts the values of a text, which take much more memory than it.
func TestMeteredJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		``: 0, `1`: 0, `{}`: 1, `{"a":1,"b":[1,2]}`: 4, `",[{"`: 0, `"\",[{"`: 0, `"\\",[`: 2,
	} {
		var c memory.ValueCounter
		account := memory.NewBudget(memory.Options{Total: 8 << 20}).OpenRequest("ann")
		got, err := io.ReadAll(memory.MeteredJSON(iotest.OneByteReader(strings.NewReader(text)), account, 2))
		if n := c.Count([]byte(text)); err != nil || n != want || string(got) != text || account.Used() != want*memory.ValueCost+2*int64(len(text)) {
			t.Errorf("%q: %d values, want %d; %d bytes were reserved, %v", text, n, want, account.Used(), err)
		}
		account.Close()
	}
	account := memory.NewBudget(memory.Options{Total: 8 << 20}).OpenRequest("ann")
	defer account.Close()
	if _, err := io.ReadAll(memory.MeteredJSON(strings.NewReader(strings.Repeat("{},", 10_000)), account, 1)); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("20,000 values: %v, want %q", err, sandpit.Exhausted)
	}
}
