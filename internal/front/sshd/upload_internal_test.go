package sshd

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestUploadOrder keeps parts that come before their turn, and takes what is skipped from
// the file that is there.
func TestUploadOrder(t *testing.T) {
	t.Parallel()
	world := fake.NewWorld(t.TempDir())
	provider := world.NewProvider()
	t.Cleanup(func() { _ = provider.Close(); _ = world.Close() })
	box, err := provider.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h := &files{ctx: t.Context(), guest: box.Guest(), uploads: make(map[string]*upload)}
	const write, creat, trunc = 0x02, 0x08, 0x10
	for name, tc := range map[string]struct {
		old   string
		flags uint32
		parts []string // at their offsets times 4
		order []int
		want  string
		fails bool
	}{
		"in order":           {"", write | creat | trunc, []string{"aaaa", "bbbb", "cc"}, []int{0, 1, 2}, "aaaabbbbcc", false},
		"out of order":       {"", write | creat | trunc, []string{"aaaa", "bbbb", "cc"}, []int{2, 1, 0}, "aaaabbbbcc", false},
		"at once":            {"", write | creat | trunc, []string{"aaaa", "bbbb", "cccc", "dddd", "e"}, nil, "aaaabbbbccccdddde", false},
		"nothing":            {"old", write | creat | trunc, nil, nil, "", false},
		"the end only":       {"aaaaxxxxyyyy", write, []string{"", "", "cccc"}, []int{2}, "aaaaxxxxcccc", false},
		"the beginning only": {"xxxxbbbb", write, []string{"aaaa"}, []int{0}, "aaaabbbb", false},
		"the middle only":    {"xxxxyyyyzz", write, []string{"", "bbbb"}, []int{1}, "xxxxbbbbzz", false},
		"longer":             {"xxxx", write, []string{"", "bbbb"}, []int{1}, "xxxxbbbb", false},
		"a hole":             {"xxxx", write, []string{"", "", "cccc"}, []int{2}, "xxxx", true},
		"a hole in nothing":  {"old", write | creat | trunc, []string{"", "bbbb"}, []int{1}, "old", true},
		"twice":              {"old", write | creat | trunc, []string{"aaaa"}, []int{0, 0}, "old", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/tmp/" + name
			if err := box.Guest().WriteFile(t.Context(), "", path, bytes.NewReader([]byte(tc.old)), sandpit.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			r := sftp.NewRequest("Put", path)
			r.Flags = tc.flags
			w, err := h.Filewrite(r)
			if err != nil {
				t.Fatal(err)
			}
			u, ok := w.(*upload)
			if !ok {
				t.Fatal(w)
			}
			var group sync.WaitGroup
			for i, part := range tc.parts {
				if tc.order == nil {
					group.Go(func() { _, _ = u.WriteAt([]byte(part), int64(4*i)) }) // Close reports what fails
				}
			}
			for _, i := range tc.order {
				_, _ = u.WriteAt([]byte(tc.parts[i]), int64(4*i)) // as above
			}
			group.Wait()
			if err := u.Close(); (err != nil) != tc.fails {
				t.Errorf("close: %v", err)
			}
			content, err := box.Guest().ReadFile(t.Context(), "", path)
			if err != nil {
				t.Fatal(err)
			}
			defer content.Close()
			if got, err := io.ReadAll(content); string(got) != tc.want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
	if h.open != 0 || len(h.uploads) != 0 {
		t.Errorf("%d files are left open", h.open)
	}
}

// TestBrokenUpload leaves what was there.
func TestBrokenUpload(t *testing.T) {
	t.Parallel()
	world := fake.NewWorld(t.TempDir())
	provider := world.NewProvider()
	t.Cleanup(func() { _ = provider.Close(); _ = world.Close() })
	box, err := provider.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h := &files{ctx: t.Context(), guest: box.Guest(), uploads: make(map[string]*upload)}
	if err := box.Guest().WriteFile(t.Context(), "", "/tmp/f", bytes.NewReader([]byte("old")), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r := sftp.NewRequest("Put", "/tmp/f")
	r.Flags = 0x1a
	w, err := h.Filewrite(r)
	if err != nil {
		t.Fatal(err)
	}
	u, ok := w.(*upload)
	if !ok {
		t.Fatal(w)
	}
	if _, err := u.WriteAt([]byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	u.TransferError(io.ErrUnexpectedEOF)
	_ = u.Close() // its error is reported already
	file, err := h.statFile("/tmp/f", true)
	if err != nil || file.Size != 3 || file.ModifiedAt.After(time.Now().Add(time.Hour)) {
		t.Errorf("%+v, %v", file, err)
	}
	content, err := box.Guest().ReadFile(t.Context(), "", "/tmp/f")
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	if got, err := io.ReadAll(content); string(got) != "old" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
