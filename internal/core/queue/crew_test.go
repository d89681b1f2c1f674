package queue_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// crewVariable holds the URL of a queue: this process is then no test but a
// server that works there.
const crewVariable = "SANDPIT_TEST_QUEUE_CREW"

// crewVisibility is short, so that what a killed server has left is soon done,
// and long for a machine that is busy with other tests.
const crewVisibility = 5 * time.Second

// crew runs a worker until its input ends. A handler reports its start and its end, and fails
// now and then.
func crew() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	q, err := queue.NewRedis(queue.RedisOptions{URL: os.Getenv(crewVariable), Prefix: usualPrefix})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	say := func(word, id string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(word, id, time.Now().UnixNano())
	}
	w, err := queue.StartWorker(context.Background(), queue.WorkerOptions{
		Queue: q, Topics: []string{topic}, Visibility: crewVisibility, Poll: 50 * time.Millisecond,
		Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, MaxRetries: 1000,
		Handler: func(_ context.Context, m queue.Message) error {
			say("begin", m.ID)
			time.Sleep(rand.N(6 * time.Millisecond))
			switch rand.IntN(10) {
			case 0:
				say("failed", m.ID)
				return errors.New("by chance")
			case 1:
				say("failed", m.ID)
				panic("by chance")
			}
			say("done", m.ID)
			return nil
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(w.Stop(end), q.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// word is one line of a server.
type word struct {
	server int
	what   string
	id     string
	at     int64
}

// member is one server of the crew.
type member struct {
	cmd   *exec.Cmd
	input io.Reader
	words []word
	heard sync.WaitGroup
	mu    sync.Mutex
}

func startMember(t *testing.T, number int, url string) *member {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &member{cmd: exec.CommandContext(t.Context(), exe)}
	m.cmd.Env = append(os.Environ(), crewVariable+"="+url)
	m.cmd.Stderr = os.Stderr
	m.input, err = m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.end(syscall.SIGKILL) })
	m.heard.Go(func() {
		for lines := bufio.NewScanner(m.input); lines.Scan(); {
			w := word{server: number}
			if n, _ := fmt.Sscan(lines.Text(), &w.what, &w.id, &w.at); n != 3 {
				continue // cut off by the kill
			}
			m.mu.Lock()
			m.words = append(m.words, w)
			m.mu.Unlock()
		}
	})
	return m
}

// end sends a signal and waits; calling it again does nothing.
func (m *member) end(s os.Signal) error {
	_ = m.cmd.Process.Signal(s) // it may have ended
	m.heard.Wait()
	return m.cmd.Wait()
}

func (m *member) said(what string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.words {
		if w.what == what {
			n++
		}
	}
	return n
}

// TestTwoServers lets two processes work on thousands of messages, and kills
// one of them in the middle.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	q := s.open(t, "")
	const messages = 3000
	want := make(map[string]bool)
	for range messages {
		want[later(t, q, 0).ID] = true
	}
	first, second := startMember(t, 1, s.url()), startMember(t, 2, s.url())
	waitFor(t, func() bool { return first.said("done") > messages/6 && second.said("done") > messages/6 })
	_ = first.end(syscall.SIGKILL) // it says that it was killed
	killed := time.Now().UnixNano()
	waitFor(t, func() bool {
		stats, err := q.Stats(t.Context())
		return err == nil && stats == queue.Stats{}
	})
	if err := second.end(syscall.SIGTERM); err != nil {
		t.Errorf("the second server: %v", err)
	}
	all := slices.Concat(first.words, second.words)
	slices.SortStableFunc(all, func(a, b word) int { return int(a.at - b.at) })
	redone, inherited := checkWords(t, all, want, killed)
	t.Logf("%d and %d done, %d of them again after the kill; %d were taken over unfinished", first.said("done"), second.said("done"), redone, inherited)
}

// checkWords checks that no message was ever with two handlers, and that each
// was done once; more often only if the server that did it was killed before it
// could say so to the queue. It returns how many these are, and how many it had
// begun only.
func checkWords(t *testing.T, all []word, want map[string]bool, killed int64) (redone, inherited int) {
	t.Helper()
	holder, done := make(map[string]word), make(map[string]int)
	for _, w := range all {
		h, held := holder[w.id]
		switch {
		case w.what != "begin":
			delete(holder, w.id)
		case held && (h.server != 1 || w.at < killed):
			t.Errorf("%s began on server %d while server %d had it", w.id, w.server, h.server)
		default:
			if held {
				inherited++
			}
			holder[w.id] = w
		}
		if w.what == "done" {
			if done[w.id]++; done[w.id] > 1 {
				redone++
			}
			if done[w.id] > 1 && w.at < killed {
				t.Errorf("%s was done twice while both servers lived", w.id)
			}
		}
		if !want[w.id] {
			t.Errorf("%q was never scheduled", strings.ToValidUTF8(w.id, "?"))
		}
	}
	if redone > 8 {
		t.Errorf("%d were done twice, want those at most that the killed server was busy with", redone)
	}
	for id := range want {
		if done[id] == 0 {
			t.Errorf("%s was lost", id)
		}
	}
	return redone, inherited
}
