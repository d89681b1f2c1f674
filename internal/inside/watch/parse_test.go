package watch

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// encode writes an event as the kernel would, with a name field of size bytes.
func encode(c change, size int) []byte {
	b := make([]byte, unix.SizeofInotifyEvent+size)
	binary.NativeEndian.PutUint32(b, uint32(c.wd))
	binary.NativeEndian.PutUint32(b[4:], c.mask)
	binary.NativeEndian.PutUint32(b[8:], c.cookie)
	binary.NativeEndian.PutUint32(b[12:], uint32(size))
	copy(b[unix.SizeofInotifyEvent:], c.name)
	return b
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]change{
		"no name":  {wd: 1, mask: unix.IN_DELETE_SELF},
		"overflow": {wd: -1, mask: unix.IN_Q_OVERFLOW},
		"name":     {wd: 7, mask: unix.IN_MOVED_TO | unix.IN_ISDIR, cookie: 9, name: "name"},
		"odd name": {wd: 7, mask: unix.IN_CREATE, name: "a\nb\xff"},
		"longest":  {wd: 7, mask: unix.IN_CREATE, name: strings.Repeat("x", 255)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			size := 0
			if want.name != "" {
				size = (len(want.name) + 16) / 16 * 16
			}
			got, rest, err := parseChange(append(encode(want, size), "rest"...))
			if got != want || string(rest) != "rest" || err != nil {
				t.Errorf("got %+v, %q, %v", got, rest, err)
			}
		})
	}
	for _, bad := range [][]byte{
		make([]byte, 1),
		make([]byte, unix.SizeofInotifyEvent-1),
		encode(change{name: "cut"}, 16)[:unix.SizeofInotifyEvent+15],
		{12: 0xFF, 13: 0xFF, 14: 0xFF, 15: 0xFF},
	} {
		if c, _, err := parseChange(bad); !errors.Is(err, errMalformed) {
			t.Errorf("parse(%v): %+v, %v, want an error", bad, c, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(encode(change{wd: 1, mask: unix.IN_CREATE, name: "name"}, 16))
	f.Add(append(encode(change{wd: 1}, 0), encode(change{wd: 2, name: "x"}, 16)...))
	f.Add([]byte{12: 0xFF, 13: 0xFF, 14: 0xFF, 15: 0xFF})
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			c, rest, err := parseChange(data)
			if err != nil {
				return
			}
			used := len(data) - len(rest)
			if used < unix.SizeofInotifyEvent || len(c.name) > used-unix.SizeofInotifyEvent || strings.ContainsRune(c.name, 0) {
				t.Fatalf("%+v of %d bytes", c, used)
			}
			data = rest
		}
	})
}
