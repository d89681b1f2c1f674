package gvisor

import (
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// FuzzRecord reads what may be in a sandbox's record. What is read is written the
// same again, but for the environment, which is not written.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(record{ID: "a", Token: "t", Spec: sandpit.Spec{
		Name: "n", Labels: map[string]string{"k": "v"}, Env: map[string]string{"SECRET": "s"},
		Mounts: []sandpit.Mount{{Source: "/a", Target: "/b"}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"spec":{"Env":{"A":"1"},"Mounts":[{}]},"created_at":"0001-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"id":{},"created_at":7}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		engine := t.TempDir()
		if err := os.Mkdir(filepath.Join(engine, boxesName), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(recordPath(engine, "x"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := readRecord(engine, "x")
		if err != nil {
			if sandpit.CodeOf(err) != sandpit.NotFound {
				t.Errorf("code %q: %v", sandpit.CodeOf(err), err)
			}
			return
		}
		read.ID = "y" // a record's own id is what its file is called by
		if _, err := json.Marshal(read); err != nil {
			return // a time that cannot be written
		}
		file, err := writeRecord(engine, read)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		again, err := readRecord(engine, "y")
		read.Spec.Env = nil
		if err != nil || again.Token != read.Token || !again.CreatedAt.Equal(read.CreatedAt) {
			t.Errorf("written %+v, read %+v, %v", read, again, err)
		}
		want, _ := json.Marshal(read.Spec)
		if got, _ := json.Marshal(again.Spec); !cmp.Equal(got, want) {
			t.Errorf("written %s, read %s", want, got)
		}
	})
}

// FuzzBinary reads programs that are no engines. What is accepted is linked
// statically and has an id.
func FuzzBinary(f *testing.F) {
	f.Add(smallELF(".note.go.buildid", "\x04\x00\x00\x00\x04\x00\x00\x00\x04\x00\x00\x00Go\x00\x00abcd"))
	f.Add(smallELF(".note.go.buildid", strings.Repeat("\x00", 20)))
	f.Add(smallELF(".interp", "/lib/ld.so"))
	f.Add([]byte("\x7fELF"))
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "engine")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := readBinary(name)
		if err != nil {
			if c := sandpit.CodeOf(err); c != sandpit.Invalid && c != sandpit.Unsupported {
				t.Errorf("code %q: %v", c, err)
			}
			return
		}
		if id, err := hex.DecodeString(b.buildID); err != nil || len(id) == 0 {
			t.Errorf("id %q", b.buildID)
		}
		file, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Error("accepted a program that wants a linker")
		}
	})
}

// smallELF makes a program file with one section besides that of the names.
func smallELF(section, content string) []byte {
	names := "\x00.shstrtab\x00" + section + "\x00"
	const header, entry = 64, 64
	put := func(b []byte, at, size int, v uint64) {
		for i := range size {
			b[at+i] = byte(v >> (8 * i))
		}
	}
	b := make([]byte, header)
	copy(b, "\x7fELF\x02\x01\x01")
	put(b, 16, 2, 2)  // executable
	put(b, 18, 2, 62) // x86-64
	put(b, 20, 4, 1)
	put(b, 52, 2, header)
	put(b, 58, 2, entry)
	put(b, 60, 2, 3)
	put(b, 62, 2, 1)
	namesAt := len(b)
	b = append(b, names...)
	contentAt := len(b)
	b = append(b, content...)
	put(b, 40, 8, uint64(len(b)))
	table := make([]byte, 3*entry)
	put(table, entry, 4, 1)
	put(table, entry+4, 4, 3)
	put(table, entry+24, 8, uint64(namesAt))
	put(table, entry+32, 8, uint64(len(names)))
	put(table, 2*entry, 4, 11)
	put(table, 2*entry+4, 4, 7)
	put(table, 2*entry+24, 8, uint64(contentAt))
	put(table, 2*entry+32, 8, uint64(len(content)))
	return append(b, table...)
}

// FuzzMountTarget holds what is accepted as a place for a mount to what the
// sandbox needs for itself.
func FuzzMountTarget(f *testing.F) {
	for _, p := range []string{"/data", "/", "", "data", "/proc", "/proc/self", "/procs", "/dev/shm", "/a/../proc", "//sys", "/x\x00", guestDir, guestDir + "/x"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, target string) {
		err := validateSpec(sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/src", Target: target}}})
		if err != nil {
			if sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("code %q: %v", sandpit.CodeOf(err), err)
			}
			return
		}
		if !filepath.IsAbs(target) || filepath.Clean(target) != target || target == "/" || strings.Contains(target, "\x00") {
			t.Errorf("accepted %q", target)
		}
		for _, own := range []string{"/proc", "/sys", "/dev", guestDir} {
			// Neither in one of them nor around one of them.
			if rel, err := filepath.Rel(own, target); err != nil || rel == "." || !strings.HasPrefix(rel, "..") {
				t.Errorf("accepted %q, which is in %s", target, own)
			}
			if rel, err := filepath.Rel(target, own); err != nil || !strings.HasPrefix(rel, "..") {
				t.Errorf("accepted %q, which hides %s", target, own)
			}
		}
	})
}
