package template

import (
	"bytes"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// secrets are values that must not appear in an image or in a build's output.
type secrets map[string]string

// minSecret is the length in bytes from which secrets are searched for: shorter ones match too
// much.
const minSecret = 6

// longestValue returns the length of the longest value in bytes.
func (s secrets) longestValue() int {
	n := 0
	for _, v := range s {
		n = max(n, len(v))
	}
	return n
}

// findSecret returns the name of a secret whose value is in data, or "".
func (s secrets) findSecret(data []byte) string {
	for name, value := range s {
		if len(value) >= minSecret && bytes.Contains(data, []byte(value)) {
			return name
		}
	}
	return ""
}

// secretScanner is a reader that fails when it reads a secret.
type secretScanner struct {
	io.ReadCloser
	secrets secrets
	tail    []byte // the last bytes read, fewer than the longest value has
}

func (s *secretScanner) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.tail = append(s.tail, p[:n]...)
	if name := s.secrets.findSecret(s.tail); name != "" {
		return 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the step has written the secret %s to a file, which every user of the image could read", name),
			"let the command read it from its environment, and delete files that contain it")
	}
	if keep := max(0, s.secrets.longestValue()-1); len(s.tail) > keep {
		s.tail = append(s.tail[:0], s.tail[len(s.tail)-keep:]...)
	}
	return n, err
}

// sharedWriter is a writer for concurrent use. It discards output if it has no target.
type sharedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == nil {
		return len(p), nil
	}
	return s.to.Write(p)
}

// stop discards all later output. After a command is canceled, its output may still arrive.
func (s *sharedWriter) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// redactor replaces secrets by "***" in output. The caller calls flush at the end.
type redactor struct {
	to      io.Writer
	secrets secrets
	mu      sync.Mutex
	held    []byte // the last bytes, which may be the beginning of a secret
}

func (r *redactor) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, p...)
	for _, value := range r.secrets {
		if len(value) >= minSecret {
			r.held = bytes.ReplaceAll(r.held, []byte(value), []byte("***"))
		}
	}
	ready := len(r.held) - r.partialSuffix()
	if _, err := r.to.Write(r.held[:ready]); err != nil {
		return 0, err
	}
	r.held = append(r.held[:0], r.held[ready:]...)
	return len(p), nil
}

// partialSuffix returns how many bytes at the end may be the beginning of a secret.
func (r *redactor) partialSuffix() int {
	longest := 0
	for _, value := range r.secrets {
		for n := min(len(value)-1, len(r.held)); n > longest; n-- {
			if bytes.HasSuffix(r.held, []byte(value[:n])) {
				longest = n
			}
		}
	}
	return longest
}

// flush writes the retained bytes.
func (r *redactor) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.to.Write(r.held)
	r.held = nil
	return err
}
