package shell

import (
	"testing"
	"time"
)

// TestDefaultTimeout holds the documented default of sessions.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{0: 60 * time.Second, time.Second: time.Second, time.Hour: time.Hour} {
		o, err := Options{Timeout: given}.withDefaults()
		if err != nil || o.Timeout != want {
			t.Errorf("timeout %s: got %s, %v; want %s", given, o.Timeout, err, want)
		}
	}
}
