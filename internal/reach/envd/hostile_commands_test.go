package envd_test

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
)

// command complains of what cannot be.
func (v *victim) command(what string, info sandpit.CommandInfo) {
	v.Helper()
	if sandpit.ValidateCommandID(info.ID) != nil || info.PID < 1 || info.PID > math.MaxInt32 || len(info.Args) == 0 {
		v.Errorf("%s: %.500v", what, info)
	}
	for _, j := range []sandpit.Journaled{info.Stdout, info.Stderr} {
		if j.Size < 0 || j.Dropped < 0 || j.Dropped > j.Size {
			v.Errorf("%s: amounts %+v", what, j)
		}
	}
	for _, at := range []time.Time{info.StartedAt, info.EndedAt} {
		if y := at.Year(); y < 1 || y > 9999 {
			v.Errorf("%s: at %v", what, at)
		}
	}
	if code := info.Status.Code; code < 0 || code > 255 {
		v.Errorf("%s: exit code %d", what, code)
	}
}

func commandsCall(ctx context.Context, v *victim) {
	list, err := v.client.ListCommands(ctx)
	v.told("list commands", err)
	for _, info := range list {
		if v.command("list commands", info); v.Failed() {
			break
		}
	}
	info, err := v.client.GetCommand(ctx, envdtest.CommandID)
	if v.told("get command", err); err == nil {
		v.command("get command", info)
	}
	v.told("forget", v.client.ForgetCommand(ctx, envdtest.CommandID))
}

// tally counts the bytes written to it.
type tally struct{ bytes, missing int64 }

func (t *tally) Write(b []byte) (int, error) {
	t.bytes += int64(len(b))
	return len(b), nil
}

func followCall(ctx context.Context, v *victim) {
	for _, noWait := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(ctx, callTime/2)
		defer cancel()
		var stdout, stderr tally
		told, err := v.client.Follow(ctx, envdtest.CommandID, sandpit.FollowOptions{
			Stdout: &stdout, Stderr: &stderr, NoWait: noWait,
			Missing: func(isStderr bool, _, n int64) {
				if isStderr {
					stderr.missing += n
				} else {
					stdout.missing += n
				}
			},
		})
		v.told("follow", err)
		if want := (sandpit.Offsets{Stdout: stdout.bytes + stdout.missing, Stderr: stderr.bytes + stderr.missing}); told.Next != want {
			v.Errorf("follow: it came to %+v, want %+v", told.Next, want)
		}
		if want := (sandpit.Offsets{Stdout: stdout.missing, Stderr: stderr.missing}); told.Missing != want || want.Stdout < 0 || want.Stderr < 0 {
			v.Errorf("follow: %+v is missing, want %+v", told.Missing, want)
		}
		if err != nil {
			continue
		}
		v.command("follow", told.Command)
		end := sandpit.Offsets{Stdout: told.Command.Stdout.Size, Stderr: told.Command.Stderr.Size}
		if told.Command.ID != envdtest.CommandID || !noWait && (!told.Command.Ended || end != told.Next) {
			v.Errorf("follow: %+v", told)
		}
	}
	// Output from another offset than the requested one is not accepted.
	told, err := v.client.Follow(ctx, envdtest.CommandID, sandpit.FollowOptions{From: sandpit.Offsets{Stdout: math.MaxInt64 - 1}})
	if v.told("follow from far", err); err == nil && told.Next.Stdout < math.MaxInt64-1 {
		v.Errorf("follow from far: %+v", told)
	}
}

// namedCall starts a command that is to have an id, which no Liar gives it.
func namedCall(ctx context.Context, v *victim) {
	p, err := v.client.Start(ctx, sandpit.Command{Args: []string{"x"}, ID: "mine", Stdout: io.Discard})
	if v.told("start named", err); err == nil {
		v.Errorf("start named: it is %q", p.ID())
		v.follow(ctx, "start named", p)
	}
}
