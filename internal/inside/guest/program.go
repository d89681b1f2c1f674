package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
)

// startError is the error of a process that could not be started.
type startError struct {
	program string
	err     error
}

func (e *startError) Error() string { return fmt.Sprintf("start %q: %v", e.program, e.err) }

func (e *startError) Unwrap() error { return e.err }

// lookPath finds a program as a shell does, with the PATH and working directory of the new process.
func lookPath(name, searchPath, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		return name, isProgram(name)
	}
	err := error(&startError{name, exec.ErrNotFound})
	for d := range strings.SplitSeq(searchPath, ":") {
		if d == "" {
			d = dir
		}
		candidate := path.Join(d, name)
		switch found := isProgram(candidate); {
		case found == nil:
			return candidate, nil
		case errors.Is(found, os.ErrPermission):
			err = found
		}
	}
	return "", err
}

func isProgram(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return &startError{name, errors.Unwrap(err)}
	case info.IsDir() || info.Mode()&0o111 == 0:
		return &startError{name, os.ErrPermission}
	}
	return nil
}
