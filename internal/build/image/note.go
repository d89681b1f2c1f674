package image

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// note is the description of an image. It is stored after the file system in the same file,
// so that neither exists without the other.
type note struct {
	Kind     Kind      `json:"kind"`
	Source   string    `json:"source,omitempty"`   // what it was built from, for people
	Digest   string    `json:"digest,omitempty"`   // of the manifest
	Platform string    `json:"platform,omitempty"` // for example linux/amd64
	Created  time.Time `json:"created,omitzero"`   // when the image was built
	Config   Config    `json:"config,omitzero"`
	// Owner is the owner whose share of the cache the image uses, besides the owners of its
	// names.
	Owner string `json:"owner,omitempty"`
	// Template is the recipe of a template, for its builder.
	Template json.RawMessage `json:"template,omitempty"`
}

// The end of a file with a note is the offset of the note and a mark. Zeros before that pad
// the file to whole blocks.
const (
	noteMark = "sandpit\n"
	noteTail = 8 + len(noteMark)
	maxNote  = 4 << 20
)

// writeNote adds n to a finished file system.
func writeNote(f *os.File, n note) error {
	data, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("describe the image: %w", err)
	}
	if len(data) > maxNote {
		return sandpit.Errorf(sandpit.Exhausted, "the image's configuration has %d bytes", len(data))
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("describe the image: %w", err)
	}
	start := info.Size()
	end := start + int64(len(data)+noteTail)
	data = append(data, make([]byte, -end&(blockSize-1))...)
	data = append(binary.LittleEndian.AppendUint64(data, uint64(start)), noteMark...) //nolint:gosec // a size
	if _, err := f.WriteAt(data, start); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

// readNote returns the note of an image.
//
// Internal: the file has no note, so it is not a finished image.
func readNote(f *os.File) (note, error) {
	var n note
	info, err := f.Stat()
	if err != nil {
		return n, fmt.Errorf("read the image: %w", err)
	}
	end := info.Size() - int64(noteTail)
	if end < 0 {
		return n, errDamagedImage(f)
	}
	tail := make([]byte, noteTail)
	if _, err := f.ReadAt(tail, end); err != nil {
		return n, fmt.Errorf("read the image: %w", err)
	}
	start := binary.LittleEndian.Uint64(tail)
	if string(tail[8:]) != noteMark || start > uint64(end) || uint64(end)-start > maxNote+blockSize {
		return n, errDamagedImage(f)
	}
	data := make([]byte, uint64(end)-start)
	if _, err := f.ReadAt(data, int64(start)); err != nil { //nolint:gosec // at most end
		return n, fmt.Errorf("read the image: %w", err)
	}
	if json.Unmarshal(bytes.TrimRight(data, "\x00"), &n) != nil {
		return n, errDamagedImage(f)
	}
	return n, nil
}

func errDamagedImage(f *os.File) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Internal, "%s in the cache is damaged", f.Name()),
		"delete that file; it is created again when it is needed")
}
