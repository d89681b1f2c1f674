package shell_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

func start(t *testing.T, s *shell.Session, r shell.JobRequest) *shell.Job {
	t.Helper()
	j, err := s.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// wait returns how a job ended.
func wait(t *testing.T, j *shell.Job) sandpit.ExitStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, err := j.Wait(ctx)
	if err != nil {
		t.Errorf("wait for %s: %v", j.ID(), err)
	}
	return status
}

// expectOutput waits until a job has put out a text.
func expectOutput(t *testing.T, j *shell.Job, text string) {
	t.Helper()
	eventually(t, "output: "+text, func() bool { return strings.Contains(string(j.Peek(0, 1<<20).Data), text) })
}

// testJobs is what jobs must do in every sandbox.
func testJobs(t *testing.T, s *shell.Session) {
	t.Helper()
	run(t, s, "cd /tmp; export V='of the shell'; unexported=1; sh -c 'exit 5'")
	j := start(t, s, shell.JobRequest{Command: `pwd; echo "$V $unexported"; echo err >&2; exit 3`})
	if status := wait(t, j); status.Code != 3 {
		t.Errorf("status %v", status)
	}
	got := string(j.Peek(0, 0).Data)
	// The two outputs are streams of their own.
	if got != "/tmp\nof the shell \nerr\n" && got != "err\n/tmp\nof the shell \n" && got != "/tmp\nerr\nof the shell \n" {
		t.Errorf("output %q", got)
	}
	if info := j.Info(); info.Running || info.ExitCode != 3 || info.Dir != "/tmp" || info.Output != 23 || info.EndedAt.Before(info.StartedAt) || info.PID == 0 {
		t.Errorf("it tells %+v", info)
	}
	expect(t, s, "echo $?", "5\n") // starting a job is no command

	cat := start(t, s, shell.JobRequest{Command: "echo ready; cat; echo end", Stdin: true})
	expectOutput(t, cat, "ready\n")
	if err := cat.Write(t.Context(), []byte("one\n")); err != nil {
		t.Error(err)
	}
	expectOutput(t, cat, "one\n")
	chunk, err := cat.Output(t.Context(), 6, 2)
	if err != nil || string(chunk.Data) != "on" || chunk.Next != 8 || chunk.Ended {
		t.Errorf("a part: %+v, %v", chunk, err)
	}
	if err := cat.CloseInput(); err != nil {
		t.Error(err)
	}
	if status := wait(t, cat); status.Code != 0 {
		t.Errorf("status %v", status)
	}
	if chunk := cat.Peek(8, 0); string(chunk.Data) != "e\nend\n" || !chunk.Ended {
		t.Errorf("the rest: %+v", chunk)
	}

	for sig, want := range map[sandpit.Signal]int{2: 102, 15: 115, 9: 137, 10: 110} {
		j := start(t, s, shell.JobRequest{Command: `for s in 2 10 15; do trap "exit 1$(printf %02d $s)" $s; done; echo ready; while :; do sleep 0.02; done`})
		expectOutput(t, j, "ready")
		if err := j.Signal(t.Context(), sig); err != nil {
			t.Errorf("signal %d: %v", sig, err)
		}
		if status := wait(t, j); status.Code != want {
			t.Errorf("signal %d: %v, want %d", sig, status, want)
		}
		wantCode(t, j.Signal(t.Context(), sig), sandpit.Gone)
		if err := j.Kill(t.Context()); err != nil {
			t.Errorf("kill what has ended: %v", err)
		}
	}
}

// testTerminal is what terminals must do in every sandbox.
func testTerminal(t *testing.T, s *shell.Session) {
	t.Helper()
	run(t, s, "cd /tmp; export V=exported")
	j, err := s.Attach(t.Context(), sandpit.TerminalSize{Cols: 91, Rows: 17})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	watchers := make([]bytes.Buffer, 3)
	for i := range watchers {
		wg.Go(func() {
			if err := j.Follow(t.Context(), 0, &watchers[i]); err != nil {
				t.Errorf("follow: %v", err)
			}
		})
	}
	press := func(keys string) {
		t.Helper()
		if err := j.Write(t.Context(), []byte(keys)); err != nil {
			t.Error(err)
		}
	}
	press("echo $V-$((6*7)) $TERM; stty size; pwd\r")
	expectOutput(t, j, "exported-42 xterm-256color\r\n17 91\r\n/tmp\r\n")
	if err := j.Resize(t.Context(), sandpit.TerminalSize{Cols: 200, Rows: 50}); err != nil {
		t.Error(err)
	}
	press("stty size\r")
	expectOutput(t, j, "50 200\r\n")
	press("echo wait$((1+1)); sleep 1000\r")
	expectOutput(t, j, "wait2\r\n")
	press("unread output must not block the input\r")
	exitTerminal(t, j)
	if status := wait(t, j); status.Code != 7 {
		t.Errorf("status %v", status)
	}
	wg.Wait()
	for i := range watchers {
		if got := watchers[i].String(); got != watchers[0].String() || !strings.Contains(got, "exported-42") {
			t.Errorf("watcher %d saw %q", i, got)
		}
	}
	if !j.Info().Terminal {
		t.Errorf("it tells %+v", j.Info())
	}
	expect(t, s, "echo apart", "apart\n")
}

// exitTerminal interrupts what runs in a terminal and has its shell end with 7. A
// shell drops what is typed while it deals with an interrupt, so it may take more than
// one try.
func exitTerminal(t *testing.T, j *shell.Job) {
	t.Helper()
	ended := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := j.Wait(ctx)
		return err == nil
	}
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		for _, keys := range []string{"\x03", "exit 7\r"} {
			if err := j.Write(t.Context(), []byte(keys)); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
				t.Error(err)
			}
			if keys == "\x03" {
				time.Sleep(200 * time.Millisecond)
			}
		}
		if ended(10 * time.Second) {
			return
		}
	}
	t.Error("the shell does not end")
}

func TestJobs(t *testing.T) {
	everyShell(t, shell.Options{}, func(t *testing.T, s *shell.Session, _ *box) { //nolint:thelper // it is the test
		testJobs(t, s)
	})
}

func TestTerminals(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{})
	testTerminal(t, s)
}

func TestJobsAreListedAndBounded(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shell.Options{MaxJobs: 2, MaxOutput: 1000})
	first := start(t, s, shell.JobRequest{Command: "seq 1 1000"})
	wait(t, first)
	if chunk := first.Peek(0, 0); chunk.Offset != 2893 || len(chunk.Data) != 1000 || !strings.HasSuffix(string(chunk.Data), "999\n1000\n") {
		t.Errorf("the end of much output: %d bytes from %d", len(chunk.Data), chunk.Offset)
	}
	second := start(t, s, shell.JobRequest{Command: "sleep 1000"})
	third := start(t, s, shell.JobRequest{Command: "sleep 1000"})
	if list := s.Jobs(); len(list) != 2 || list[0] != second || list[1] != third || s.Info().Jobs != 2 {
		t.Errorf("the list: %v, %+v", list, s.Info())
	}
	_, err := s.Job(first.ID())
	wantCode(t, err, sandpit.NotFound)
	if got, err := s.Job(second.ID()); err != nil || got != second {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = s.Start(t.Context(), shell.JobRequest{Command: "true"})
	wantCode(t, err, sandpit.Exhausted)
	wantCode(t, second.Write(t.Context(), []byte("x")), sandpit.Conflict)
	wantCode(t, second.CloseInput(), sandpit.Conflict)
	wantCode(t, second.Resize(t.Context(), sandpit.TerminalSize{Cols: 1, Rows: 1}), sandpit.Conflict)
	wantCode(t, second.Signal(t.Context(), 65), sandpit.Invalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = second.Output(ctx, 0, 0)
	wantCode(t, err, sandpit.Canceled)
	_, err = second.Wait(ctx)
	wantCode(t, err, sandpit.Canceled)
	if err := second.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if status := wait(t, second); status.Code != 137 || !status.Signaled {
		t.Errorf("status %v", status)
	}
	for _, r := range []shell.JobRequest{{}, {Command: " \n"}, {Command: "a\x00"}, {Command: "\xff"}, {Command: "a", Timeout: -1}, {Command: "a", MaxOutput: -1}, {Command: strings.Repeat("a", 1<<17)}} {
		_, err := s.Start(t.Context(), r)
		wantCode(t, err, sandpit.Invalid)
	}
	limited := start(t, s, shell.JobRequest{Command: "sleep 1000", Timeout: 100 * time.Millisecond})
	_, err = limited.Wait(t.Context())
	wantCode(t, err, sandpit.Timeout)
	if info := limited.Info(); info.Running || info.Error == "" || info.ExitCode != 137 {
		t.Errorf("it tells %+v", info)
	}
	if _, err := s.Start(ctx, shell.JobRequest{Command: "true"}); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("with a context that has ended: %v", err)
	}
}
