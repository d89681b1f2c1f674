package queue_test

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestMain(m *testing.M) {
	if os.Getenv(crewVariable) != "" {
		os.Exit(crew())
	}
	goleak.VerifyTestMain(m)
}

// server is a redis-server of the test's own.
type server struct {
	tb       testing.TB
	dir      string
	args     []string
	password string
	cmd      *exec.Cmd
}

// startServer starts one that listens on a socket in its directory only, unless
// args say something else, and forgets everything when it ends.
func startServer(tb testing.TB, args ...string) *server {
	tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		testengine.Skip(tb, "there is no redis-server: %v", err)
	}
	dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{tb: tb, dir: dir, args: append([]string{
		"--port", "0", "--bind", "127.0.0.1", "--unixsocket", filepath.Join(dir, "s"), "--unixsocketperm", "700",
		"--save", "", "--dir", dir, "--loglevel", "warning",
	}, args...)}
	tb.Cleanup(s.kill)
	s.start()
	return s
}

// start starts the server, and waits until something answers on its socket.
func (s *server) start() {
	s.tb.Helper()
	s.cmd = exec.CommandContext(s.tb.Context(), "redis-server", s.args...)
	s.cmd.Dir = s.dir
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer out.Close()
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := (&net.Dialer{}).DialContext(s.tb.Context(), "unix", filepath.Join(s.dir, "s"))
		if err == nil {
			c.Close()
			return
		}
		if time.Since(begin) > 30*time.Second {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.tb.Fatalf("redis-server does not start: %v\n%s", err, log)
		}
	}
}

// kill ends the server as a power cut does.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill() // it may have ended
		_ = s.cmd.Wait()
		s.cmd = nil
		_ = os.Remove(filepath.Join(s.dir, "s"))
	}
}

func (s *server) url() string { return "unix://" + filepath.Join(s.dir, "s") }

// open returns a queue there.
func (s *server) open(t *testing.T, prefix string) *queue.Redis {
	t.Helper()
	return openRedis(t, queue.RedisOptions{URL: s.url(), Prefix: prefix})
}

// usualPrefix is the prefix of queues that do not share a server with others.
const usualPrefix = "test"

func openRedis(t *testing.T, o queue.RedisOptions) *queue.Redis {
	t.Helper()
	o.Prefix = cmp.Or(o.Prefix, usualPrefix)
	q, err := queue.NewRedis(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q
}

// freePort returns a port that is not in use at this moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
