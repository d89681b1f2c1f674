package mirror_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFile fetches a file by what is known of it; internal/build/debian and internal/build/npm have
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

// TestBounds has more fetched than there is room for.
func TestBounds(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat(path.Base(r.URL.Path), 1000))
	}))
	t.Cleanup(server.Close)
	full := sandpit.Errorf(sandpit.Exhausted, "the disk is full")
	dir := t.TempDir()
	fetch := func(b mirror.Bounds, names ...string) error {
		c, err := mirror.Open(mirror.Options{Dir: dir, Keep: "-keep", Bases: []string{server.URL}, Bounds: b})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i, name := range names {
			sum := sha256.Sum256([]byte(strings.Repeat(name, 1000)))
			f, err := c.File(t.Context(), name, mirror.Pin{Digest: hex.EncodeToString(sum[:]), Size: 1000})
			if err != nil {
				return err
			}
			at := time.Now().Add(time.Duration(i-100) * time.Hour)
			if err := errors.Join(os.Chtimes(filepath.Join(dir, hex.EncodeToString(sum[:])), at, at), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	}
	left := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if err := os.WriteFile(filepath.Join(dir, "seen-keep"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fetch(mirror.Bounds{}, "a", "b", "c", "d"); err != nil || left() != 5 {
		t.Fatalf("without bounds: %v, %d files", err, left())
	}
	if err := fetch(mirror.Bounds{Kept: 2500}); err != nil || left() != 3 {
		t.Errorf("%v, %d files are left, want 2 and what is kept", err, left())
	}
	asked := 0
	for name, tc := range map[string]struct {
		bounds mirror.Bounds
		names  []string
	}{
		"too much":              {mirror.Bounds{Fetched: 1500}, []string{"e", "f", "g"}},
		"too much that is here": {mirror.Bounds{Fetched: 1500}, []string{"c", "d"}},
		"a full disk":           {mirror.Bounds{Check: func() error { asked++; return full }}, []string{"h"}},
	} {
		if err := fetch(tc.bounds, tc.names...); !errors.Is(err, sandpit.Exhausted) {
			t.Errorf("%s: %v, want Exhausted", name, err)
		}
	}
	if asked == 0 {
		t.Error("the disk was not looked at")
	}
}
