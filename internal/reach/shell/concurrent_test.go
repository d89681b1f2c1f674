package shell_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestConcurrentCommandsTakeTurns(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		run(t, s, "n=0")
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				word := strings.Repeat(strconv.Itoa(i%10), 100)
				command := fmt.Sprintf("n=$((n + 1)); echo %s; echo %s; echo %s >&2", word, word, word)
				r, err := s.Run(t.Context(), shell.RunRequest{Command: command, SeparateStderr: true})
				if err != nil || string(r.Stdout) != word+"\n"+word+"\n" || string(r.Stderr) != word+"\n" {
					t.Errorf("%d: %+v, %v", i, r, err)
				}
			})
		}
		wg.Wait()
		expect(t, s, "echo $n", "20\n")
	})
}

// hold keeps a session busy until the returned function is called.
func hold(t *testing.T, s *shell.Session, b *box) (release func()) {
	t.Helper()
	begun, end := filepath.Join(b.dir, "begun"), filepath.Join(b.dir, "end")
	done := make(chan error, 1)
	go func() {
		_, err := s.Run(t.Context(), shell.RunRequest{Command: fmt.Sprintf("touch '%s'; while ! test -e '%s'; do sleep 0.01; done", begun, end)})
		done <- err
	}()
	eventually(t, "the command runs", func() bool {
		_, err := os.Stat(begun)
		return err == nil
	})
	return func() {
		t.Helper()
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestCommandsWaitInTheirOrder(t *testing.T) {
	t.Parallel()
	s, b := open(t, shell.Options{})
	release := hold(t, s, b)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { run(t, s, fmt.Sprintf("order=\"$order %d\"", i)) })
		eventually(t, "it waits", func() bool { return s.Info().Waiting == i+2 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, shell.RunRequest{Command: "order=none"}); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("a caller that gives up: %v", err)
	}
	release()
	wg.Wait()
	expect(t, s, "echo $order | tr -d ' ' | wc -c", "6\n")
}

func TestBusySessionRefusesIfAsked(t *testing.T) {
	t.Parallel()
	s, b := open(t, shell.Options{RefuseBusy: true})
	release := hold(t, s, b)
	_, err := s.Run(t.Context(), shell.RunRequest{Command: "true"})
	wantCode(t, err, sandpit.Conflict)
	_, err = s.Start(t.Context(), shell.JobRequest{Command: "true"})
	wantCode(t, err, sandpit.Conflict)
	release()
	expect(t, s, "echo free", "free\n")
}

func TestCloseEndsWhatRuns(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, b *box) { //nolint:thelper // it is the test
		run(t, s, "sleep 1000 & echo $! >pids; cd /")
		j, err := s.Start(t.Context(), shell.JobRequest{Command: "echo job; sleep 1000"})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the job prints", func() bool { return string(j.Peek(0, 0).Data) == "job\n" })
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := s.Run(t.Context(), shell.RunRequest{Command: "touch " + b.dir + "/runs; sleep 1000"})
				errs <- err
			}()
		}
		eventually(t, "a command runs", func() bool {
			_, err := os.Stat(filepath.Join(b.dir, "runs"))
			return err == nil && s.Info().Waiting == 3
		})
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for range 3 {
			wantCode(t, <-errs, sandpit.Gone)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
		_, err = s.Run(t.Context(), shell.RunRequest{Command: "true"})
		wantCode(t, err, sandpit.Gone)
		_, err = s.Start(t.Context(), shell.JobRequest{Command: "true"})
		wantCode(t, err, sandpit.Gone)
		info := s.Info()
		if !info.Closed || info.Reason == "" || info.Runs == 0 || info.Jobs != 0 || info.ID == "" {
			t.Errorf("closed, it tells %+v", info)
		}
		if got := j.Peek(0, 0); string(got.Data) != "job\n" || !got.Ended {
			t.Errorf("the job's output: %+v", got)
		}
		pid, err := os.ReadFile(filepath.Join(b.dir, "pids"))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the background child ends", func() bool {
			stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
			return err != nil || strings.Contains(string(stat), ") Z ")
		})
	})
}

func TestSandboxThatEndsTellsWhy(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, b *box) error{
		"killed": func(_ context.Context, b *box) error {
			return b.world.Kill(b.ID(), sandpit.Exit{Reason: "the lease is over"})
		},
		"destroyed": func(ctx context.Context, b *box) error { return b.Destroy(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			set := shell.NewSessions(b.Guest(), shell.SetOptions{})
			s, err := set.Create(t.Context(), "one", shell.Options{Timeout: patience, Dir: b.dir})
			if err != nil {
				t.Fatal(err)
			}
			idle, err := set.Create(t.Context(), "two", shell.Options{})
			if err != nil {
				t.Fatal(err)
			}
			j, err := s.Start(t.Context(), shell.JobRequest{Command: "sleep 1000"})
			if err != nil {
				t.Fatal(err)
			}
			errs := make(chan error, 1)
			go func() {
				_, err := s.Run(t.Context(), shell.RunRequest{Command: "touch runs; sleep 1000"})
				errs <- err
			}()
			eventually(t, "the command runs", func() bool {
				_, err := os.Stat(filepath.Join(b.dir, "runs"))
				return err == nil
			})
			if err := end(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			err = <-errs
			wantCode(t, err, sandpit.Gone)
			if !strings.Contains(err.Error(), "ended") {
				t.Errorf("it does not say why: %v", err)
			}
			_, err = j.Wait(t.Context())
			wantCode(t, err, sandpit.Gone)
			_, err = idle.Run(t.Context(), shell.RunRequest{Command: "true"})
			wantCode(t, err, sandpit.Gone)
			eventually(t, "the sessions close", func() bool { return len(set.List()) == 0 })
			_, err = set.Get("two")
			wantCode(t, err, sandpit.Gone)
			_, err = set.Create(t.Context(), "three", shell.Options{})
			wantCode(t, err, sandpit.Gone)
			if err := set.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestConnectionsThatBreakDoNotHang(t *testing.T) {
	t.Parallel()
	s, b := open(t, shell.Options{})
	remove := b.world.Inject(fake.Fault{Op: fake.OpHTTP, Err: sandpit.Errorf(sandpit.Unavailable, "planted")})
	defer remove()
	_, err := s.Start(t.Context(), shell.JobRequest{Command: "true"})
	wantCode(t, err, sandpit.Unavailable)
	remove()
	expect(t, s, "echo back", "back\n")
}
