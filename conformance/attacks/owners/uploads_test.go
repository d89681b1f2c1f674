package owners_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// diskUsage returns how many bytes the files below a directory have, and how many files
// uploads are being written to.
func diskUsage(dir string) (total int64, uploads int) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			total += info.Size()
		}
		if strings.HasPrefix(filepath.Base(path), "part-") {
			uploads++
		}
		return nil
	})
	return total, uploads
}

// e2bTemplate creates a template, and returns its ID and that of its first build.
func (p party) e2bTemplate(t *testing.T, name string) (template, build string) {
	t.Helper()
	var made struct {
		Template string `json:"templateID"`
		Build    string `json:"buildID"`
	}
	p.must(t, http.MethodPost, "/v3/templates", map[string]any{"name": name}).decode(t, &made)
	return made.Template, made.Build
}

// uploadLink returns the path where files of a template's build are sent.
func (p party) uploadLink(t *testing.T, template, hash string) string {
	t.Helper()
	var link struct{ URL string }
	p.must(t, http.MethodGet, "/templates/"+template+"/files/"+hash, nil).decode(t, &link)
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.RequestURI()
}

// zeros is an archive with one file of so many bytes, packed.
func zeros(t *testing.T, size int64) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o600, Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zero{}, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

type zero struct{}

func (zero) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestUnpackedFiles has a build copy from one small archive over and over.
func TestUnpackedFiles(t *testing.T) {
	t.Parallel()
	const size, copies = 32 << 20, 12
	l := newLab(t, labOptions{})
	template, build := l.alice.e2bTemplate(t, "bomb")
	hash := strings.Repeat("ab", 32)
	l.alice.must(t, http.MethodPut, l.alice.uploadLink(t, template, hash), bytes.NewReader(zeros(t, size)))
	var steps []map[string]any
	for i := range copies {
		steps = append(steps, map[string]any{"type": "COPY", "args": []string{"zeros", fmt.Sprintf("/zeros%d", i), "", ""}, "filesHash": hash})
	}
	done := make(chan response)
	go func() {
		r, _ := l.alice.do(t.Context(), http.MethodPost, "/v2/templates/"+template+"/builds/"+build,
			map[string]any{"fromImage": l.image, "steps": steps}, nil) // the response says enough
		done <- r
	}()
	files := filepath.Join(l.dir, "state", "e2b")
	most := int64(0)
	answered := false
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end) || !answered; {
		select {
		case r := <-done:
			answered = true
			if r.status != http.StatusAccepted {
				t.Fatalf("start the build: %d\n%s", r.status, r.body)
			}
		case <-time.After(20 * time.Millisecond):
		}
		total, _ := diskUsage(files)
		most = max(most, total)
	}
	t.Logf("at most %d MiB", most>>20)
	if most == 0 || most > 2*size {
		t.Errorf("the files of one build have %d bytes, want at most %d", most, 2*size)
	}
}

// TestUploadsAtOnce begins more uploads than an owner may have room for, and ends none.
func TestUploadsAtOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{})
	template, _ := l.alice.e2bTemplate(t, "large")
	piece := strings.Repeat("x", 64<<10)
	for i := range 8 {
		path := l.alice.uploadLink(t, template, fmt.Sprintf("%064x", i))
		l.open(t, fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", path, 1<<30, piece))
	}
	files := filepath.Join(l.dir, "state", "e2b")
	most := 0
	for end := time.Now().Add(callTimeout); most == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		_, most = diskUsage(files)
	}
	for range 20 { // in which time all would begin
		time.Sleep(100 * time.Millisecond)
		_, uploads := diskUsage(files)
		most = max(most, uploads)
	}
	if most == 0 || most > 4 {
		t.Errorf("%d uploads of 1 GiB at a time, want 1 to 4", most)
	}
	template, _ = l.bob.e2bTemplate(t, "small")
	hash := strings.Repeat("cd", 32)
	l.bob.must(t, http.MethodPut, l.bob.uploadLink(t, template, hash), bytes.NewReader(zeros(t, 1000)))
	if _, err := os.Stat(filepath.Join(files, fmt.Sprintf("%x", "bob"), hash+".tar")); err != nil {
		t.Error(err)
	}
}
