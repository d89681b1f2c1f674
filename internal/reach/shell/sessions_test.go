package shell_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

func newSet(t *testing.T, b *box, o shell.SetOptions) *shell.Sessions {
	t.Helper()
	set := shell.NewSessions(b.Guest(), o)
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Errorf("close the set: %v", err)
		}
	})
	return set
}

func TestSessionsAreFoundListedAndClosed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	set := newSet(t, b, shell.SetOptions{Max: 2})
	o := shell.Options{Timeout: patience}
	first, err := set.Create(t.Context(), "first", o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := set.Create(t.Context(), "", o)
	if err != nil {
		t.Fatal(err)
	}
	run(t, first, "x=first")
	run(t, second, "x=second")
	expect(t, first, "echo $x", "first\n")
	if got, err := set.Get(second.ID()); err != nil || got != second {
		t.Errorf("got %v, %v", got, err)
	}
	if list := set.List(); len(list) != 2 || list[0].ID != "first" || list[1].ID != second.ID() || list[0].Runs != 2 || list[0].Shell != "bash" {
		t.Errorf("the list: %+v", list)
	}
	_, err = set.Create(t.Context(), "third", o)
	wantCode(t, err, sandpit.Exhausted)
	_, err = set.Create(t.Context(), "first", o)
	wantCode(t, err, sandpit.AlreadyExists)
	for _, name := range []string{"../x", "-x", ".", "a b", "ü", fmt.Sprintf("%065d", 1)} {
		_, err = set.Create(t.Context(), name, o)
		wantCode(t, err, sandpit.Invalid)
	}
	if err := set.CloseSession("first"); err != nil {
		t.Error(err)
	}
	_, err = set.Get("first")
	wantCode(t, err, sandpit.Gone)
	wantCode(t, set.CloseSession("first"), sandpit.Gone)
	_, err = set.Get("never")
	wantCode(t, err, sandpit.NotFound)
	again, err := set.Create(t.Context(), "first", o)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, again, "echo \"<$x>\"", "<>\n")
	for _, bad := range []shell.Options{{Dir: "relative"}, {MaxOutput: -1}, {MaxOutput: 1 << 30}, {Timeout: -1}, {Shell: "fish"}} {
		if err := set.CloseSession("first"); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
			t.Fatal(err)
		}
		_, err := set.Create(t.Context(), "bad", bad)
		wantCode(t, err, sandpit.Invalid)
	}
	reason := sandpit.Errorf(sandpit.Gone, "the lease is over")
	set.Ended(reason)
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	_, err = set.Create(t.Context(), "x", o)
	if !errors.Is(err, reason) {
		t.Errorf("after the end: %v", err)
	}
	_, err = second.Run(t.Context(), shell.RunRequest{Command: "true"})
	if !errors.Is(err, reason) || second.Info().Reason != "the lease is over" {
		t.Errorf("after the end: %v, %+v", err, second.Info())
	}
}

func TestIdleSessionsAreClosed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	set := newSet(t, b, shell.SetOptions{IdleTimeout: 10 * time.Second})
	o := shell.Options{Timeout: patience}
	idle, err := set.Create(t.Context(), "idle", o)
	if err != nil {
		t.Fatal(err)
	}
	busy, err := set.Create(t.Context(), "busy", o)
	if err != nil {
		t.Fatal(err)
	}
	held, err := set.Create(t.Context(), "held", o)
	if err != nil {
		t.Fatal(err)
	}
	j := start(t, held, shell.JobRequest{Command: "echo job; sleep 1000"})
	expect(t, busy, "sleep 12; echo still", "still\n")
	eventually(t, "the idle one is closed", func() bool { return idle.Info().Closed })
	_, err = set.Get("idle")
	wantCode(t, err, sandpit.Gone)
	_, err = idle.Run(t.Context(), shell.RunRequest{Command: "true"})
	wantCode(t, err, sandpit.Gone)
	if !j.Info().Running || held.Info().Closed {
		t.Errorf("with a job: %+v", held.Info())
	}
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	eventually(t, "the others are closed", func() bool { return len(set.List()) == 0 })
}

func TestManySessionsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	set := newSet(t, b, shell.SetOptions{Max: 8})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s, err := set.Create(t.Context(), fmt.Sprint("s", i), shell.Options{Timeout: patience})
			if err != nil {
				t.Error(err)
				return
			}
			for k := range 10 {
				expect(t, s, fmt.Sprintf("x=$((x + %d)); echo %d.%d", k, i, k), fmt.Sprintf("%d.%d\n", i, k))
			}
			expect(t, s, "echo $x", "45\n")
			if err := set.CloseSession(s.ID()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list := set.List(); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// TestCloseOneWithCommand closes a session while it runs a command: the other sessions remain.
func TestCloseOneWithCommand(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	set := shell.NewSessions(b.Guest(), shell.SetOptions{})
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	one, err := set.Create(t.Context(), "one", shell.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	two, err := set.Create(t.Context(), "two", shell.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan error)
	var once sync.Once
	go func() {
		_, err := one.Run(t.Context(), shell.RunRequest{
			Command: "echo began; sleep 1000", Output: func(bool, []byte) { once.Do(func() { close(began) }) },
		})
		ended <- err
	}()
	<-began
	if err := set.CloseSession("one"); err != nil {
		t.Errorf("close the session: %v", err)
	}
	if err := <-ended; sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("the command: error %v, want Gone", err)
	}
	if r, err := two.Run(t.Context(), shell.RunRequest{Command: "echo usable"}); err != nil || string(r.Stdout) != "usable\n" || set.Reason() != nil {
		t.Errorf("the other session: %+v, error %v, set closed because of %v", r, err, set.Reason())
	}
}
