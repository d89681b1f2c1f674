package manager_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
)

// witness remembers what it hears.
type witness struct {
	mu   sync.Mutex
	said []string
}

func (w *witness) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func (w *witness) heard(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.said, text)
}

func (w *witness) Done(r manager.Report) { w.say("%s %v", r.Action, r.Err == nil) }

func (w *witness) Asked(provider string, _ sandpit.Image, found bool) {
	w.say("asked %s %v", provider, found)
}

func (w *witness) PassedOn(provider string, err error) {
	w.say("passed on %s %v", provider, err == nil)
}

func (w *witness) Handled(kind queue.Kind, err error) { w.say("handled %s %v", kind, err == nil) }

func (w *witness) Ended(_ time.Duration, status sandpit.ExitStatus, err error) {
	w.say("ended %d %v", status.Code, err == nil)
}

func TestObserver(t *testing.T) {
	t.Parallel()
	w := &witness{}
	o := withPool(1, 0)
	o.Observer = w
	r := newRig(t, o)
	r.filled(t, 1)
	b := r.create(t, manager.CreateRequest{Spec: kind})
	if err := r.Delete(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), manager.CreateRequest{Provider: "nowhere"}); err == nil {
		t.Error("create: no error, want one")
	}
	if got := r.CountStates(); got[sandpit.StateRunning] != 0 || got[sandpit.StateDeleted] != 0 {
		t.Errorf("states: %v, want nothing of the pool's and nothing that was deleted", got)
	}
	for _, want := range []string{"asked fake true", "create true", "delete true", "create false"} {
		if !w.heard(want) {
			t.Errorf("nothing was heard of %q; but of %q", want, w.said)
		}
	}
	second := r.create(t, manager.CreateRequest{})
	if got := r.CountStates(); got[sandpit.StateRunning] != 1 || len(got) != 1 {
		t.Errorf("states: %v, want one that runs", got)
	}
	if err := r.Delete(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
}

// A sandbox whose request names no deadline gets one.
func TestLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStage(t, manager.Options{Lifetime: time.Minute, IdleTimeout: 1000 * time.Hour})
		short := r.create(t, manager.CreateRequest{})
		long := r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Hour)}})
		time.Sleep(2 * time.Minute)
		r.wantState(t, short.ID, sandpit.StateDeleted)
		r.wantState(t, long.ID, sandpit.StateRunning)
	})
}

// TestMaxRetries has a deadline fail for ever.
func TestMaxRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &witness{}
		stage := newStage()
		o := testoptions.Manager(manager.Options{
			Providers: map[string]sandpit.Provider{"stage": stage}, IdleTimeout: 1000 * time.Hour, Observer: w,
		})
		o.MaxRetries = 0
		r := newExactRig(t, o)
		r.create(t, manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now().Add(time.Minute), Action: sandpit.ActionPause}})
		stage.set(0, sandpit.Errorf(sandpit.Unavailable, "not now"))
		time.Sleep(10 * time.Minute)
		stage.set(0, nil)
		stats, err := r.store.Queue().Stats(t.Context())
		if err != nil || stats.Dead != 1 {
			t.Errorf("queue: %+v, %v; want one that was given up at once", stats, err)
		}
		if !w.heard("handled deadline false") {
			t.Errorf("heard %q, want that the deadline failed", w.said)
		}
	})
}

// What requests and pools leave open is filled in before they are compared.
func TestFill(t *testing.T) {
	t.Parallel()
	o := manager.Options{
		Pools: []manager.Pool{{Size: 1}},
		CompleteSpec: func(_ string, s *sandpit.Spec) {
			if s.Resources.PIDs == 0 {
				s.Resources.PIDs = 99
			}
		},
	}
	r := newRig(t, o)
	r.filled(t, 1)
	spec := sandpit.Spec{Env: map[string]string{"A": "1"}}
	for _, asked := range []sandpit.Spec{spec, {Resources: sandpit.Resources{PIDs: 99}}} {
		got := r.create(t, manager.CreateRequest{Spec: asked})
		if got.Spec.Resources.PIDs != 99 {
			t.Errorf("the sandbox has %+v, want what was filled in", got.Spec.Resources)
		}
		r.filled(t, 1)
	}
	if spec.Resources.PIDs != 0 || r.Pools().List()[0].Spec.Resources.PIDs != 99 {
		t.Errorf("spec %+v, pools %+v", spec, r.Pools().List())
	}
}

// TestObserverOfCommands: commands are counted, also when they are passed to the guest's
// protocol, also after a restart; the readiness of a template, which is asked for again and
// again, and the warming up of pools are not.
func TestObserverOfCommands(t *testing.T) {
	t.Parallel()
	w := &witness{}
	o := withPool(1, 0)
	o.Observer = w
	r := newRig(t, o)
	r.filled(t, 1)
	if w.heard("run command true") {
		t.Error("the warming up of a pool is reported")
	}
	b := r.create(t, manager.CreateRequest{Spec: kind})
	status := 3
	for range 2 {
		h, err := r.Use(t.Context(), b.ID)
		if err != nil {
			t.Fatal(err)
		}
		p, err := h.Guest().Start(h.Context(), sandpit.Command{Args: []string{"sh", "-c", fmt.Sprint("exit ", status)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(h.Context()); err != nil {
			t.Fatal(err)
		}
		h.Release()
		want := fmt.Sprintf("ended %d true", status)
		eventually(t, want, func() bool { return w.heard("run command true") && w.heard(want) })
		status++
		r.close(t)
		r.open(t)
	}
}
