package gvisor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// identity is the part of a spec that is not in the record, because the record is a file. The
// engine holds it in memory.
type identity struct {
	Env map[string]string `json:"env,omitempty"`
}

const maxIdentity = 4 << 20

// toFile returns the identity as a file without a name, in memory.
func (d identity) toFile() (*os.File, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("write the identity: %w", err)
	}
	fd, err := unix.MemfdCreate("sandpit-identity", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("write the identity: %w", err)
	}
	f := os.NewFile(uintptr(fd), "identity")
	if _, err := f.Write(data); err != nil {
		_ = f.Close() // memory only
		return nil, fmt.Errorf("write the identity: %w", err)
	}
	return f, nil
}

// readIdentity reads what toFile has written.
func readIdentity(f *os.File) (identity, error) {
	var d identity
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxIdentity)) // the descriptor is shared, and its position too
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		return d, fmt.Errorf("read the identity: %w", err)
	}
	return d, nil
}
