package debian

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"time"
)

// TestVersions orders versions in all pairs.
func TestVersions(t *testing.T) {
	t.Parallel()
	ordered := []string{
		"0~~", "0~", "0", "0.1~rc1-1", "0.1", "0.1-0.1", "0.1-1", "0.1-1+b1", "0.1-1+deb12u1", "0.1a", "0.1+1", "0.1.1", "0.2", "0.10", "1", "9~", "10", "1:0", "1:0-1", "2:0",
	}
	for i, a := range ordered {
		for j, b := range ordered {
			got := compareVersions(a, b)
			if (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
	for _, same := range [][2]string{{"1", "1-0"}, {"0:1", "1"}, {"1.01", "1.1"}} {
		if got := compareVersions(same[0], same[1]); got != 0 {
			t.Errorf("%s and %s: %d", same[0], same[1], got)
		}
	}
}

// FuzzParagraphs reads control files and relations between packages.
func FuzzParagraphs(f *testing.F) {
	f.Add([]byte("Package: a\nVersion: 1\nDepends: b (>= 1) | c:any, d\n e\n\nPackage: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		total := 0
		_ = readParagraphs(bytes.NewReader(data), func(p paragraph, text string) error {
			total += len(text)
			for _, need := range splitList(p["depends"]) {
				r := parseRelation(need)
				if r.operator != "" && r.isMetBy(r.version) && (r.operator == "<<" || r.operator == ">>") {
					t.Errorf("%q allows itself", need)
				}
			}
			return nil
		})
		if total > 2*len(data)+1 {
			t.Errorf("%d bytes of %d", total, len(data))
		}
	})
}

// FuzzPackage reads packages; no name may lead out of the image.
func FuzzPackage(f *testing.F) {
	f.Add([]byte("!<arch>\ndata.tar        0           0     0     100644  10        `\n0123456789"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		left := int64(1 << 20)
		if err := copyFiles(w, bytes.NewReader(data), &left); err != nil {
			return
		}
		for r := tar.NewReader(&out); ; {
			h, err := r.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				return // not closed
			}
			if !isBelow(h.Name) && h.Typeflag != tar.TypeDir && !bytes.ContainsAny([]byte(h.Name), "?#%\\ \n") {
				t.Errorf("a file has the name %q", h.Name)
			}
		}
	})
}

// FuzzRelease reads what is signed of releases.
func FuzzRelease(f *testing.F) {
	f.Add([]byte("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nSuite: a\n-----BEGIN PGP SIGNATURE-----\n\nx\n-----END PGP SIGNATURE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := openRelease(data, archiveKeys, "bookworm", time.Unix(0, 0)); err == nil {
			t.Error("a release without a signature of Debian's")
		}
	})
}
