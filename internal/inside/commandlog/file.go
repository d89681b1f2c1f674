package commandlog

import (
	"errors"
	"os"
)

// Nameless returns a new file without a name. It is created as name in dir, and the name is removed at once.
func Nameless(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := dir.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
