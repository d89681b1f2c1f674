package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/queue/queuetest"
)

const password = "s3cret-pässword"

func TestRedis(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var n atomic.Int64
	queuetest.Run(t, func(t *testing.T) queue.Queue {
		t.Helper()
		q, err := queue.NewRedis(queue.RedisOptions{URL: s.url(), Prefix: fmt.Sprintf("test-%d", n.Add(1))})
		if err != nil {
			t.Fatal(err)
		}
		return q
	})
}

// TestRedisLeavesNothing does everything, after which the server is empty.
func TestRedisLeavesNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	q, ctx := s.open(t, "tidy"), t.Context()
	for i := range 6 {
		m := later(t, q, 0)
		if i%2 == 0 {
			later(t, q, 0)
		}
		c := claimOf(t, q, m.ID)
		var err error
		switch i {
		case 0:
			err = q.Complete(ctx, c)
		case 1:
			if err = q.Bury(ctx, c, "x"); err == nil {
				err = q.Drop(ctx, c.ID)
			}
		case 2:
			if err = q.Bury(ctx, c, "x"); err == nil {
				err = q.Revive(ctx, c.ID, time.Now())
			}
		case 3:
			err = q.Retry(ctx, c, time.Now(), "x")
		case 4:
			_, err = q.Extend(ctx, c, time.Now())
		}
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	list, err := q.List(ctx, queue.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if _, err := q.Cancel(ctx, m.Sandbox); err != nil {
			t.Fatal(err)
		}
	}
	wantStats(t, q, queue.Stats{}) // also forgets the topic
	keys, err := s.raw(t).Keys(ctx, "*").Result()
	if len(keys) != 0 || err != nil {
		t.Errorf("left over: %q, error %v", keys, err)
	}
}

// claimOf claims what is due until the message is among it.
func claimOf(t *testing.T, q queue.Queue, id string) queue.Claim {
	t.Helper()
	claims, err := q.Claim(t.Context(), time.Now(), []string{topic}, 100, time.Minute)
	for _, c := range claims {
		if c.ID == id {
			return c
		}
	}
	t.Fatalf("%s is not among %+v, error %v", id, claims, err)
	return queue.Claim{}
}

// raw returns a client without our code.
func (s *server) raw(t *testing.T) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(s.dir, "s"), Password: s.password})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRedisPrefixes(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	one, two := s.open(t, "one"), s.open(t, "two")
	later(t, one, 0)
	wantStats(t, one, queue.Stats{Pending: 1})
	wantStats(t, two, queue.Stats{})
	keys, err := s.raw(t).Keys(t.Context(), "*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys %q, error %v", keys, err)
	}
	for _, k := range keys {
		if !strings.HasPrefix(k, "{one}:") {
			t.Errorf("key %q is outside the prefix", k)
		}
	}
}

// TestRedisThatForgets refuses a server that throws keys away.
func TestRedisThatForgets(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want sandpit.Code
	}{
		"never":       {nil, ""},
		"no limit":    {[]string{"--maxmemory-policy", "allkeys-lru"}, ""},
		"with expiry": {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"}, ""},
		"any key":     {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, sandpit.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := startServer(t, tc.args...).open(t, "").Check(t.Context())
			if sandpit.CodeOf(err) != tc.want {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestRedisFull(t *testing.T) {
	t.Parallel()
	q := startServer(t, "--maxmemory", "1kb").open(t, "")
	_, err := q.Schedule(t.Context(), queue.Message{Topic: topic, Sandbox: sandpit.NewID(), Kind: "idle", Due: time.Now()})
	if !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("error %v, want Exhausted", err)
	}
}

// TestRedisDamage removes and changes parts behind the queue's back. What is
// whole is still found, and the error names what is not.
func TestRedisDamage(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	raw := s.raw(t)
	for name, damage := range map[string]func(key string) error{
		"lost":           func(key string) error { return raw.Del(t.Context(), key).Err() },
		"no JSON":        func(key string) error { return raw.HSet(t.Context(), key, "body", "{").Err() },
		"wrong sandbox":  func(key string) error { return raw.HSet(t.Context(), key, "body", `{"sandbox":"../x"}`).Err() },
		"wrong attempts": func(key string) error { return raw.HSet(t.Context(), key, "attempts", "-1").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := strings.ReplaceAll(name, " ", "-")
			q := s.open(t, prefix)
			bad, good := later(t, q, -time.Second), later(t, q, 0)
			if err := damage("{" + prefix + "}:m:" + bad.ID); err != nil {
				t.Fatal(err)
			}
			claims, err := q.Claim(t.Context(), time.Now(), []string{topic}, 10, time.Minute)
			if len(claims) != 1 || claims[0].ID != good.ID {
				t.Errorf("claimed %+v, want the good one", claims)
			}
			if !errors.Is(err, sandpit.Internal) || !strings.Contains(err.Error(), bad.ID) {
				t.Errorf("error %v, want one that names %s", err, bad.ID)
			}
			if claims, err = q.Claim(t.Context(), time.Now(), []string{topic}, 10, time.Minute); len(claims) != 0 || err != nil {
				t.Errorf("then claimed %+v, error %v; want peace for a minute", claims, err)
			}
			again := bad
			if _, err := q.Schedule(t.Context(), again); err != nil {
				t.Errorf("schedule in its place: %v", err)
			}
			if _, err := q.Cancel(t.Context(), bad.Sandbox); err != nil {
				t.Errorf("cancel: %v", err)
			}
			wantStats(t, q, queue.Stats{Claimed: 1})
		})
	}
}

// TestRedisLostAnswers cuts connections when the server has done what it was
// asked, but its answer is still on the way. Nothing is lost or done twice.
func TestRedisLostAnswers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	cut := startProxy(t, filepath.Join(s.dir, "s"))
	q := openRedis(t, queue.RedisOptions{URL: "unix://" + cut.path})
	ctx := t.Context()
	m := later(t, q, 0) // the script is known from here on

	cut.next.Store(true)
	again, err := q.Schedule(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	wantStats(t, q, queue.Stats{Pending: 1})

	cut.next.Store(true)
	if err := q.Shift(ctx, []string{topic}, -time.Hour); err != nil {
		t.Fatal(err)
	}
	list, err := q.List(ctx, queue.Filter{})
	again.Due = again.Due.Add(-time.Hour)
	if diff := cmp.Diff([]queue.Message{again}, list); diff != "" || err != nil {
		t.Errorf("shifted, error %v (-want +got):\n%s", err, diff)
	}

	cut.next.Store(true)
	claims, err := q.Claim(ctx, time.Now(), []string{topic}, 10, time.Minute)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claimed %+v, error %v", claims, err)
	}
	if err := q.Complete(ctx, claims[0]); err != nil {
		t.Errorf("complete what was claimed: %v", err)
	}
	wantStats(t, q, queue.Stats{})

	// Another worker claims the message before it is sent again.
	direct := s.open(t, "")
	var all sync.WaitGroup
	all.Go(func() {
		for begin := time.Now(); time.Since(begin) < time.Minute; {
			claims, err := direct.Claim(ctx, time.Now(), []string{topic}, 10, time.Minute)
			if err != nil || len(claims) == 1 {
				return
			}
		}
	})
	cut.next.Store(true)
	later(t, q, 0)
	all.Wait()
	wantStats(t, q, queue.Stats{Claimed: 1})
	if n := cut.cuts.Load(); n != 4 {
		t.Errorf("%d answers were cut, want 4", n)
	}
}

// proxy stands before a server and can cut a connection instead of passing on
// the next answer.
type proxy struct {
	path string
	next atomic.Bool
	cuts atomic.Int64
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	p := &proxy{path: to + "p"}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(t.Context(), "unix", to)
			if err != nil {
				client.Close()
				continue
			}
			all.Go(func() { io.Copy(server, client); server.Close() })
			all.Go(func() { p.answers(client, server) })
		}
	})
	return p
}

func (p *proxy) answers(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		if p.next.CompareAndSwap(true, false) {
			p.cuts.Add(1)
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestRedisAway calls a server that is not there, then one that hangs.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	q := s.open(t, "")
	later(t, q, 0)
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := q.Stats(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 10*time.Second {
		t.Errorf("a server that hangs: error %v after %v, want the deadline", err, time.Since(begin))
	}
	s.kill()
	_, err := q.Stats(t.Context())
	if !errors.Is(err, sandpit.Unavailable) {
		t.Errorf("a server that is not there: error %v, want Unavailable", err)
	}
	s.start()
	wantStats(t, q, queue.Stats{})
}

// TestWorkerOutlivesRedis kills the server, which keeps its data, three times
// while a worker works.
func TestWorkerOutlivesRedis(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--appendonly", "yes", "--appendfsync", "always")
	q := s.open(t, "")
	const messages = 300
	for range messages {
		later(t, q, 0)
	}
	var done sync.Map
	var running, count atomic.Int64
	work(t, q, func(_ context.Context, m queue.Message) error {
		if running.Add(1) > 8 {
			t.Error("more handlers at the same time than allowed")
		}
		defer running.Add(-1)
		time.Sleep(20 * time.Millisecond)
		if _, again := done.LoadOrStore(m.ID, true); again {
			t.Errorf("%s was done twice", m.ID)
		}
		count.Add(1)
		return nil
	})
	for i := range int64(3) {
		waitFor(t, func() bool { return count.Load() > 80*(i+1) })
		s.kill()
		time.Sleep(50 * time.Millisecond)
		s.start()
	}
	waitFor(t, func() bool { return count.Load() == messages })
	waitFor(t, func() bool {
		stats, err := q.Stats(t.Context())
		return err == nil && stats == queue.Stats{}
	})
}

func waitFor(t *testing.T, ready func() bool) {
	t.Helper()
	for begin := time.Now(); !ready(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 2*time.Minute {
			t.Fatal("this does not happen")
		}
	}
}
