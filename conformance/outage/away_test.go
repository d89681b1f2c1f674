package outage_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// TestDaemonAway has the daemon be away, and back, for longer than calls wait: the
// command under way ends for its caller, with the reason, and continues in its
// sandbox, where it is found again.
func TestDaemonAway(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leave, comeBack func(*daemon)
	}{
		"killed": {(*daemon).kill, (*daemon).start},
		"hangs":  {func(d *daemon) { d.signal(syscall.SIGSTOP) }, func(d *daemon) { d.signal(syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t, "--live-restore")
			state := t.TempDir()
			p := d.open(state, func(o *docker.Options) { o.Patience = 10 * time.Second })
			box, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: rootFS(t)})
			if err != nil {
				t.Fatal(err)
			}
			held, err := box.Guest().Start(within(t), sandpit.Command{
				ID: "held", Args: []string{"sh", "-c", "until test -e go; do sleep 0.1; done; echo went"},
			})
			if err != nil {
				t.Fatal(err)
			}
			tc.leave(d)
			ctx := within(t)
			if _, err := held.Wait(ctx); sandpit.CodeOf(err) != sandpit.Unavailable || ctx.Err() != nil {
				t.Errorf("a command under way while the daemon is away: %v, want %s", err, sandpit.Unavailable)
			}
			if err := alive(ctx, box.Guest()); sandpit.CodeOf(err) != sandpit.Unavailable || sandpit.HintOf(err) == "" {
				t.Errorf("a command while the daemon is away: %v, want %s and a hint", err, sandpit.Unavailable)
			}
			// Calls fail at once instead of waiting for the engine, which may take two minutes.
			begin := time.Now()
			_, err = p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: rootFS(t)})
			if took := time.Since(begin); sandpit.CodeOf(err) != sandpit.Unavailable || took > time.Minute {
				t.Errorf("a sandbox while the daemon is away: %v after %s, want %s at once", err, took, sandpit.Unavailable)
			}
			tc.comeBack(d)
			awaitAlive(t, box)
			if _, err := run(within(t), box, "touch go"); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			journal, ok := box.Guest().(sandpit.Journal)
			if !ok {
				t.Fatal("the guest keeps no output")
			}
			told, err := journal.Follow(within(t), "held", sandpit.FollowOptions{Stdout: &out})
			if err != nil || !told.Command.Ended || told.Command.Status.Code != 0 || out.String() != "went\n" {
				t.Errorf("the command that went on: %+v, %v, output %q", told.Command, err, &out)
			}
			if err := box.Destroy(within(t)); err != nil {
				t.Error(err)
			}
			d.expectNothing(state)
		})
	}
}

// awaitAlive waits until the daemon is noticed to be back.
func awaitAlive(t *testing.T, box sandpit.Instance) {
	t.Helper()
	for ctx := within(t); ; time.Sleep(100 * time.Millisecond) {
		err := alive(ctx, box.Guest())
		if err == nil {
			return
		}
		if sandpit.CodeOf(err) != sandpit.Unavailable || ctx.Err() != nil {
			t.Fatalf("a command when the daemon is back: %v", err)
		}
	}
}
