package survive_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// Variables for a longer run.
const (
	commandsVariable = "SANDPIT_TEST_SURVIVE_COMMANDS"
	killsVariable    = "SANDPIT_TEST_SURVIVE_KILLS"
)

const boxes = 4

// script puts out lines on both streams for a while: $1 names it, $2 is how many, $3
// its exit status, $4 the seconds between two. It ends when the file $5 exists, or at once without $5.
const script = `i=0
while [ $i -lt $2 ]; do
	echo "$1 out $i 0123456789abcdefghijklmnopqrstuvwxyz"
	echo "$1 err $i" >&2
	i=$((i+1))
	sleep $4
done
while [ -n "$5" ] && ! [ -e "$5" ]; do sleep $4; done
exit $3`

// killsOver is a file that a sandbox has when all servers were killed that will be.
const killsOver = "/tmp/kills-over"

// expected is what the script puts out.
func expected(name string, lines int) (stdout, stderr []byte) {
	for i := range lines {
		stdout = fmt.Appendf(stdout, "%s out %d 0123456789abcdefghijklmnopqrstuvwxyz\n", name, i)
		stderr = fmt.Appendf(stderr, "%s err %d\n", name, i)
	}
	return stdout, stderr
}

// TestCommandsSurvive has many commands run while connections are reset and the server
// is killed. Of each every byte and the exit code must arrive.
func TestCommandsSurvive(t *testing.T) {
	w := newWorld(t)
	commands, kills := number(commandsVariable, 40), number(killsVariable, 3)
	w.start()
	w.makeKey()
	p := newProxy(t, w.address)
	direct, c := w.client("http://"+w.address), w.client(p.url())
	t.Cleanup(direct.Close)
	t.Cleanup(c.Close)
	var list []*client.Sandbox
	for range boxes {
		s, err := direct.Sandboxes.Create(t.Context(), client.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	begin := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	speed := paceOf(commands, kills)
	var (
		group sync.WaitGroup
		ended atomic.Int64
	)
	for i := range commands {
		group.Go(func() {
			defer ended.Add(1)
			runOne(ctx, t, c.Sandboxes.Open(list[i%len(list)].ID), i, speed)
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	resets, killed := disturb(w, p, done, kills, func() {
		for _, s := range list {
			if status, err := s.Exec(ctx, sandpit.Command{Args: []string{"touch", killsOver}}); err != nil || status.Code != 0 {
				t.Errorf("let the commands end: %v, %v", status, err)
				cancel()
			}
		}
	})
	<-done
	t.Logf("%d commands of %d lines on each stream in %s: %d servers killed, %d connections reset",
		commands, speed.lines, time.Since(begin).Round(time.Second), killed, resets)
	if killed < kills {
		t.Errorf("only %d servers were killed before all had ended, want %d", killed, kills)
	}
	for _, s := range list {
		if err := direct.Sandboxes.Delete(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
	}
	w.stop()
}

// disturb resets connections all the time and kills the server now and then, until all
// commands have ended. It calls over when the last server was killed and the next one is ready.
func disturb(w *world, p *proxy, done <-chan struct{}, kills int, over func()) (resets, killed int) {
	if kills == 0 {
		over()
	}
	for next := time.Now().Add(2 * time.Second); ; {
		select {
		case <-done:
			return resets, killed
		case <-time.After(rand.N(600 * time.Millisecond)):
		}
		resets += p.reset(func() bool { return rand.IntN(10) == 0 })
		if killed < kills && time.Now().After(next) {
			w.kill()
			w.start()
			killed++
			next = time.Now().Add(time.Second + rand.N(2*time.Second))
			if killed == kills {
				over()
			}
		}
	}
}

// pace is how many lines each command puts out, and the time between two.
type pace struct {
	lines int
	pause time.Duration
}

// paceOf returns the pace of commands. All together start as many programs in a second however
// many they are, since that is what a machine runs out of.
func paceOf(commands, kills int) pace {
	pause := max(200*time.Millisecond, time.Duration(commands)*5*time.Millisecond)
	return pace{20 + int(time.Duration(kills)*4*time.Second/pause), pause}
}

// runOne runs one command and compares what arrives.
func runOne(ctx context.Context, t *testing.T, s *client.Sandbox, i int, speed pace) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, 10*patience, errStopped)
	defer cancel()
	var stdout, stderr bytes.Buffer
	name, code := "command-"+strconv.Itoa(i), i%200
	status, err := s.Exec(ctx, sandpit.Command{
		Args:   []string{"sh", "-c", script, "sh", name, strconv.Itoa(speed.lines), strconv.Itoa(code), fmt.Sprint(speed.pause.Seconds()), killsOver},
		Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || status.Code != code {
		t.Errorf("%s: %v, %v, want exit status %d", name, status, err, code)
	}
	wantOut, wantErr := expected(name, speed.lines)
	for stream, pair := range map[string][2][]byte{"stdout": {stdout.Bytes(), wantOut}, "stderr": {stderr.Bytes(), wantErr}} {
		if !bytes.Equal(pair[0], pair[1]) {
			t.Errorf("%s: %s has %d bytes, want %d; it differs from byte %d on", name, stream, len(pair[0]), len(pair[1]), differsAt(pair[0], pair[1]))
		}
	}
}

func differsAt(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func number(variable string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return usual
}
