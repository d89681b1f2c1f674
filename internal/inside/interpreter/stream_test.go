package interpreter

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzStream reads what a program prints in pieces of any size: nothing may be lost or added, and marks
// are found wherever they are cut.
func FuzzStream(f *testing.F) {
	const mark = "MARKMARKED"
	f.Add([]byte("out MARKMARKED more"), byte(1))
	f.Add([]byte("MARKMARKMARKED\xf0\x9f\x98"), byte(3))
	f.Add([]byte("\xff\xfe MARK"), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, size byte) {
		k := &kernel{backlog: make(map[Stream][]byte)}
		r := k.beginRun()
		var text []byte
		marks := 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			k.readStream(pieces{bytes.NewReader(data), int(size) + 1}, Stdout, mark)
		}()
		for open := true; open; {
			select {
			case m := <-r.messages:
				text = append(text, m.text...)
				if m.marked {
					marks++
				}
			case <-ended:
				open = false
			}
		}
		if want := strings.ReplaceAll(string(data), mark, ""); string(text) != want || marks != bytes.Count(data, []byte(mark)) {
			t.Errorf("%q, %d marks; want %q", text, marks, want)
		}
	})
}

// pieces reads so many bytes at a time.
type pieces struct {
	r    *bytes.Reader
	size int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(p.size, len(b))]) }

// FuzzLines gives any bytes for a kernel's lines.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"type":"result","data":{"text/plain":"x"}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := &execution{emit: func(event Event) error {
			_, err := json.Marshal(event)
			return err
		}, stop: func() {}, marked: make(map[Stream]bool)}
		for line := range bytes.Lines(data) {
			if m, err := parseLine(line); err == nil {
				e.handleMessage(m)
			}
		}
		if e.failed != nil {
			t.Error(e.failed)
		}
	})
}
