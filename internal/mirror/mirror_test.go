package mirror_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFile fetches a file by what is known of it; internal/debian and internal/npm have
// the tests of servers that lie.
func TestFile(t *testing.T) {
	t.Parallel()
	const text = "what it is"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	t.Cleanup(server.Close)
	short, long := sha256.Sum256([]byte(text)), sha512.Sum512([]byte(text))
	for name, tc := range map[string]struct {
		pin  mirror.Pin
		code sandpit.Code
	}{
		"SHA-256":          {mirror.Pin{Digest: hex.EncodeToString(short[:]), Size: int64(len(text))}, ""},
		"SHA-512":          {mirror.Pin{Digest: hex.EncodeToString(long[:]), Limit: 100}, ""},
		"the limit itself": {mirror.Pin{Digest: hex.EncodeToString(long[:]), Limit: int64(len(text))}, ""},
		"beyond the limit": {mirror.Pin{Digest: hex.EncodeToString(long[:]), Limit: int64(len(text)) - 1}, sandpit.Unavailable},
		"another size":     {mirror.Pin{Digest: hex.EncodeToString(short[:]), Size: 11}, sandpit.Unavailable},
		"another sum":      {mirror.Pin{Digest: hex.EncodeToString(make([]byte, 64)), Limit: 100}, sandpit.Unavailable},
		"no size":          {mirror.Pin{Digest: hex.EncodeToString(short[:])}, sandpit.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := mirror.Open(mirror.Options{Dir: t.TempDir(), Bases: []string{server.URL}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for range 2 { // the second is that of the directory
				f, err := c.File(t.Context(), "a", tc.pin)
				if tc.code != "" {
					if sandpit.CodeOf(err) != tc.code {
						t.Errorf("%v, want %s", err, tc.code)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(f); err != nil || string(got) != text {
					t.Errorf("%q, %v", got, err)
				}
				_ = f.Close() // only read
			}
		})
	}
}
