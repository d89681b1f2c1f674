package fake_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

var errOrdered = sandpit.Errorf(sandpit.Unavailable, "as ordered")

// TestEveryOperationFails orders a fault for each operation, once.
func TestEveryOperationFails(t *testing.T) {
	t.Parallel()
	type operation = func(context.Context, *fake.Provider, *fake.Instance) error
	for op, do := range map[fake.Op]operation{
		fake.OpCreate: func(ctx context.Context, p *fake.Provider, _ *fake.Instance) error {
			_, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{})
			return err
		},
		fake.OpList: func(ctx context.Context, p *fake.Provider, _ *fake.Instance) error {
			_, err := p.List(ctx)
			return err
		},
		fake.OpAttach: func(ctx context.Context, p *fake.Provider, i *fake.Instance) error {
			_, err := p.Attach(ctx, i.Handle())
			return err
		},
		fake.OpWait: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := i.Wait(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			return err
		},
		fake.OpDial: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			conn, err := i.Dial(ctx, guest.Port)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
		fake.OpHTTP: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			_, err := i.Guest().ListProcesses(ctx)
			return err
		},
		fake.OpClaim: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			return i.Claim(ctx, sandpit.Spec{})
		},
		fake.OpStop:    func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error { return i.Stop(ctx) },
		fake.OpStart:   afterwards((*fake.Instance).Stop, (*fake.Instance).Start),
		fake.OpPause:   func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error { return i.Pause(ctx) },
		fake.OpResume:  afterwards((*fake.Instance).Pause, (*fake.Instance).Resume),
		fake.OpArchive: afterwards((*fake.Instance).Stop, (*fake.Instance).Archive),
		fake.OpRestore: func(ctx context.Context, p *fake.Provider, i *fake.Instance) error {
			if err := i.Stop(ctx); err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
				return err
			}
			return afterwards((*fake.Instance).Archive, (*fake.Instance).Restore)(ctx, p, i)
		},
		fake.OpSnapshot: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			_, err := i.Snapshot(ctx, sandpit.NewSnapshotID())
			return err
		},
		fake.OpResize: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			return i.Resize(ctx, sandpit.Resources{})
		},
		fake.OpStats: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			_, err := i.Stats(ctx)
			return err
		},
		fake.OpSetNetwork: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			return i.SetNetworkPolicy(ctx, sandpit.NetworkPolicy{})
		},
		fake.OpRenew: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			return i.Renew(ctx, sandpit.Expiry{})
		},
		fake.OpReadAccount: func(ctx context.Context, p *fake.Provider, _ *fake.Instance) error {
			_, err := p.World().NewCloud(sandpit.Account{}).ReadAccount(ctx)
			return err
		},
		fake.OpReadState: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
			_, err := i.ReadState(ctx)
			return err
		},
		fake.OpDestroy: func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error { return i.Destroy(ctx) },
	} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := open(t, w)
			i := create(t, p)
			before := w.Calls(op, "")
			w.Inject(fake.Fault{Op: op, Err: errOrdered})
			if err := do(t.Context(), p, i); !errors.Is(err, errOrdered) {
				t.Errorf("got %v, want the error that was ordered", err)
			}
			if err := do(t.Context(), p, i); err != nil {
				t.Errorf("the second time: %v", err)
			}
			if n := w.Calls(op, "") - before; n != 2 {
				t.Errorf("%d calls were counted, want 2", n)
			}
		})
	}
}

// afterwards is an operation that needs another state, made once.
func afterwards(first, then func(*fake.Instance, context.Context) error) func(context.Context, *fake.Provider, *fake.Instance) error {
	return func(ctx context.Context, _ *fake.Provider, i *fake.Instance) error {
		if err := first(i, ctx); err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
			return err
		}
		return then(i, ctx)
	}
}

func TestLostAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := open(t, w)
	w.Inject(fake.Fault{Op: fake.OpCreate, Err: errOrdered, After: true})
	id := sandpit.NewID()
	if _, err := p.Create(t.Context(), id, sandpit.Spec{}); !errors.Is(err, errOrdered) {
		t.Errorf("create: %v", err)
	}
	if view, ok := w.Look(id); !ok || view.State != fake.Running {
		t.Errorf("what was made and not told: %+v, %t", view, ok)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("list: %+v, %v", list, err)
	}
	i, err := p.Attach(t.Context(), list[0].Handle)
	if err != nil {
		t.Fatal(err)
	}
	w.Inject(fake.Fault{Op: fake.OpDestroy, Err: errOrdered, After: true})
	if err := i.Destroy(t.Context()); !errors.Is(err, errOrdered) {
		t.Errorf("destroy: %v", err)
	}
	if _, ok := w.Look(id); ok {
		t.Error("it was not destroyed")
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Errorf("destroy again: %v", err)
	}
	_, err = p.Create(t.Context(), "not an id", sandpit.Spec{})
	wantCode(t, err, sandpit.Invalid) // what fails by itself fails so
}

func TestDelays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := open(t, w)
	for _, after := range []bool{false, true} {
		w.Inject(fake.Fault{Op: fake.OpCreate, Delay: 30 * time.Millisecond, After: after})
		begin := time.Now()
		i := create(t, p)
		if took := time.Since(begin); took < 30*time.Millisecond {
			t.Errorf("after %t: it took %s, want at least 30 ms", after, took)
		}
		w.Inject(fake.Fault{Op: fake.OpDestroy, Delay: time.Hour, After: after})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		err := i.Destroy(ctx)
		cancel()
		wantCode(t, err, sandpit.Timeout)
		if _, there := w.Look(i.ID()); there == after {
			t.Errorf("after %t: it is there: %t", after, there)
		}
	}
}

func TestFaultsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := open(t, w)
	a, b := create(t, p), create(t, p)
	fails := func(i *fake.Instance) bool { return errors.Is(i.Resize(t.Context(), sandpit.Resources{}), errOrdered) }

	w.Inject(fake.Fault{Op: fake.OpResize, ID: a.ID(), Err: errOrdered, Times: 2})
	if fails(b) || !fails(a) || !fails(a) || fails(a) {
		t.Error("a fault of one sandbox, twice, is not so")
	}
	remove := w.Inject(fake.Fault{Op: fake.OpResize, Err: errOrdered, Times: -1})
	for range 10 {
		if !fails(a) || !fails(b) {
			t.Error("a fault for ever is not so")
		}
	}
	remove()
	remove()
	if fails(a) {
		t.Error("a fault that was taken back is there still")
	}
	if n := w.Calls(fake.OpResize, b.ID()); n != 11 {
		t.Errorf("%d calls for one sandbox, want 11", n)
	}

	other := sandpit.Errorf(sandpit.Exhausted, "another")
	w.Inject(fake.Fault{Op: fake.OpResize, Err: errOrdered})
	w.Inject(fake.Fault{Op: fake.OpResize, Err: other})
	if !fails(a) {
		t.Error("the first order does not come first")
	}
	wantCode(t, a.Resize(t.Context(), sandpit.Resources{}), sandpit.Exhausted)
}

func TestFaultsOfPorts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := create(t, open(t, w))
	w.Inject(fake.Fault{Op: fake.OpHTTP, Port: 8000, Err: errOrdered, Times: -1})
	if _, err := i.Guest().ListProcesses(t.Context()); err != nil {
		t.Errorf("the guest's own port: %v", err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://sandbox/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.HTTP(8000).RoundTrip(r); !errors.Is(err, errOrdered) { //nolint:bodyclose // there is no answer
		t.Errorf("the port: %v", err)
	}
	w.Inject(fake.Fault{Op: fake.OpHTTP, Port: guest.Port, Err: errOrdered, After: true})
	_, err = i.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sleep", "1000"}, Tag: "unheard"})
	wantCode(t, err, sandpit.Unavailable)
	list, err := i.Guest().ListProcesses(t.Context())
	if err != nil || len(list) != 1 || list[0].Tag != "unheard" {
		t.Errorf("a process whose start was not heard of: %+v, %v", list, err)
	}
}
