// Package testserver runs sandpit servers for tests as users do: through the command line, with
// settings from the environment.
package testserver

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// Server is a running server. The caller of Start must End it.
type Server struct {
	// URL is the address of the server.
	URL string
	// Log contains its log.
	Log *Log

	cmd  *exec.Cmd
	rest chan struct{} // closed when its output has ended
}

// Start starts a server and returns once it listens. The environment is all that it has. The
// launcher, if there is one, is a command whose further arguments are what it is to run.
func Start(tb testing.TB, environ []string, launcher ...string) *Server {
	tb.Helper()
	s := &Server{Log: &Log{}, rest: make(chan struct{})}
	args := append(slices.Clone(launcher), testengine.Path(tb), "serve")
	s.cmd = exec.CommandContext(context.WithoutCancel(tb.Context()), args[0], args[1:]...)
	s.cmd.Env, s.cmd.Stderr = environ, s.Log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	reader := bufio.NewReader(out)
	first, err := reader.ReadString('\n')
	go func() {
		defer close(s.rest)
		_, _ = io.Copy(io.Discard, reader) // the output ends with the server
	}()
	if err != nil {
		s.End(tb, syscall.SIGKILL)
		tb.Fatalf("the server does not start: %v\n%s", err, s.Log)
	}
	s.URL = regexp.MustCompile(`https?://[0-9.:]+`).FindString(first)
	return s
}

// PID returns the ID of the server's process, or of its launcher.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// End ends the server. The server must exit without an error unless it is killed.
func (s *Server) End(tb testing.TB, how syscall.Signal) {
	tb.Helper()
	_ = s.cmd.Process.Signal(how) // it may have ended
	<-s.rest
	if err := s.cmd.Wait(); err != nil && how != syscall.SIGKILL {
		tb.Errorf("the server: %v\n%s", err, s.Log)
	}
}

// Log is a buffer for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns everything that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
