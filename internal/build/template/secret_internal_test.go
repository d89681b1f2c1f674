package template

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sandpit-dev/sandpit"
)

// TestSecretsInPieces has secrets come in pieces of every size.
func TestSecretsInPieces(t *testing.T) {
	t.Parallel()
	hidden := secrets{"A": "abcabcabd", "B": "abcabcXYZ", "C": "x"}
	const text = "abcabcabcabd, abcabc and abcabcXYZ; x abcabcab"
	const want = "abc***, abcabc and ***; x abcabcab"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		r := &redactor{to: &out, secrets: hidden}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if _, err := io.WriteString(r, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := r.flush(); err != nil || out.String() != want {
			t.Errorf("in pieces of %d: %q, %v", size, &out, err)
		}
	}
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(text), "bytes": iotest.OneByteReader(strings.NewReader(text)), "halves": iotest.HalfReader(strings.NewReader(text)),
	} {
		_, err := io.Copy(io.Discard, &secretScanner{ReadCloser: io.NopCloser(r), secrets: hidden})
		if sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	clean := &secretScanner{ReadCloser: io.NopCloser(strings.NewReader("abcabca bcabcXYZ")), secrets: hidden}
	if data, err := io.ReadAll(clean); err != nil || len(data) != 16 {
		t.Errorf("what has none: %q, %v", data, err)
	}
}
