package template

import (
	"bytes"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// secrets are values that must not be found in an image or in what a build tells.
type secrets map[string]string

// minSecret is how many bytes a secret must have to be looked for: shorter ones are found
// everywhere.
const minSecret = 6

// longestValue is how many bytes the longest value has.
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

// secretScanner passes a stream on and fails when a secret is in it.
type secretScanner struct {
	io.ReadCloser
	secrets secrets
	tail    []byte // what was passed on last, shorter than the longest value
}

func (s *secretScanner) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.tail = append(s.tail, p[:n]...)
	if name := s.secrets.findSecret(s.tail); name != "" {
		return 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the step has written the secret %s to a file, and all who use the image could read it", name),
			"have the command take it from its environment, and remove what it writes down")
	}
	if keep := max(0, s.secrets.longestValue()-1); len(s.tail) > keep {
		s.tail = append(s.tail[:0], s.tail[len(s.tail)-keep:]...)
	}
	return n, err
}

// sharedWriter is a writer for two, or for nobody.
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

// stop has nothing written any more. When a command is given up, what it had put out may
// still be on its way.
func (s *sharedWriter) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = nil
}

// redactor writes output on, with "***" where a secret was. Its owner flushes it.
type redactor struct {
	to      io.Writer
	secrets secrets
	mu      sync.Mutex
	held    []byte // the end of what was written, which may be the beginning of a value
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

// partialSuffix is how many bytes at the end may be the beginning of a value.
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

// flush writes what was held back.
func (r *redactor) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.to.Write(r.held)
	r.held = nil
	return err
}
