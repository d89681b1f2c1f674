package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// keptKit returns a kit whose sandbox records when it is renewed. Its tools fail, because it has no guest.
func keptKit(t *testing.T, turns []turn, renew func() error, set func(*agent.Options)) (k *kit, renewed *[]time.Duration) {
	t.Helper()
	begun := time.Now()
	renewed = new([]time.Duration)
	return newKit(t, turns, func(o *agent.Options) {
		o.Open = func(context.Context) (agent.Sandbox, error) {
			return agent.Sandbox{
				Wake: func(context.Context) (sandpit.Guest, error) {
					return nil, sandpit.Errorf(sandpit.Unavailable, "no guest")
				},
				Renew: func(context.Context) error {
					*renewed = append(*renewed, time.Since(begun))
					return renew()
				},
			}, nil
		}
		set(o)
	}), renewed
}

func sleeps(d time.Duration, t turn) turn {
	return func(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
		time.Sleep(d)
		return t(ctx, r, onDelta)
	}
}

// TestKeepsSandbox has a person answer after 23 hours, and the model think for two: the sandbox is renewed in time all
// along, and no longer once the agent is closed.
func TestKeepsSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		k, renewed := keptKit(t, []turn{calls(`file_read {"path":"a"}`, `ask_human {"inquire":"?"}`), sleeps(2*time.Hour, end("success", ""))},
			func() error { return nil }, func(o *agent.Options) {
				o.ResponseTimeout = 3 * time.Hour
				o.Ask = func(context.Context, string) (string, error) { time.Sleep(23 * time.Hour); return "yes", nil }
			})
		k.want("do it", agent.Finished, agent.StateFinished)
		synctest.Wait()
		last := time.Duration(0)
		for _, at := range append(slices.Clone(*renewed), time.Since(begun)) {
			if at-last > 10*time.Minute {
				t.Fatalf("not renewed from %v to %v", last, at)
			}
			last = at
		}
		if err := k.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := len(*renewed)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n < 25*12-1 || len(*renewed) != n {
			t.Errorf("%d renewals, %d after the agent was closed", n, len(*renewed)-n)
		}
	})
}

// TestKeepEnds leaves an agent without a task: its sandbox is not kept for ever. The next task keeps it again.
func TestKeepEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, renewed := keptKit(t, []turn{calls(`file_read {"path":"a"}`), end("success", ""), calls(`file_read {"path":"a"}`), end("success", "")},
			func() error { return nil }, func(*agent.Options) {})
		k.want("do it", agent.Finished, agent.StateFinished)
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		n := len(*renewed)
		if last := (*renewed)[n-1]; last < 24*time.Hour || last > 25*time.Hour+10*time.Minute {
			t.Errorf("renewed until %v", last)
		}
		k.want("again", agent.Finished, agent.StateFinished)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(*renewed) < n+10 {
			t.Errorf("renewed %d times after the next task", len(*renewed)-n)
		}
	})
}

// TestKeepFails has renewals fail: that is reported once, and they continue until the sandbox has ended.
func TestKeepFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failures := []error{sandpit.Errorf(sandpit.Unavailable, "no line"), sandpit.Errorf(sandpit.Unavailable, "no line"), nil, sandpit.Errorf(sandpit.Gone, "ended")}
		next := 0
		k, renewed := keptKit(t, []turn{calls(`file_read {"path":"a"}`), sleeps(2*time.Hour, end("success", ""))}, func() error {
			if next++; next > len(failures) {
				panic("renewed after its end")
			}
			return failures[next-1]
		}, func(o *agent.Options) { o.ResponseTimeout = 3 * time.Hour })
		k.want("do it", agent.Finished, agent.StateFinished)
		synctest.Wait()
		var notices []string
		for _, e := range k.events {
			if e.Kind == agent.EventNotice {
				notices = append(notices, e.Text)
			}
		}
		if len(*renewed) != 4 || len(notices) != 1 || !strings.Contains(notices[0], "keep the sandbox: no line") {
			t.Errorf("%d renewals, notices %q", len(*renewed), notices)
		}
	})
}
