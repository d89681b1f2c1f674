package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Instance is one sandbox of a Provider. It has every optional ability. While it is paused, stopped
// or archived, calls of its guest and connections fail with Conflict.
type Instance struct {
	box     *sandbox
	guest   *homeGuest
	monitor *liveness.Monitor

	mu         sync.Mutex
	transports map[int]*roundTripper
}

var (
	_ sandpit.Instance       = (*Instance)(nil)
	_ sandpit.Dialer         = (*Instance)(nil)
	_ sandpit.Claimer        = (*Instance)(nil)
	_ sandpit.Stopper        = (*Instance)(nil)
	_ sandpit.Pauser         = (*Instance)(nil)
	_ sandpit.Suspender      = (*Instance)(nil)
	_ sandpit.SaveEstimator  = (*Instance)(nil)
	_ sandpit.Checkpointer   = (*Instance)(nil)
	_ sandpit.Reviver        = (*Instance)(nil)
	_ sandpit.Archiver       = (*Instance)(nil)
	_ sandpit.Snapshotter    = (*Instance)(nil)
	_ sandpit.Rollbacker     = (*Instance)(nil)
	_ sandpit.LayerReader    = (*Instance)(nil)
	_ sandpit.Resizer        = (*Instance)(nil)
	_ sandpit.Statser        = (*Instance)(nil)
	_ sandpit.NetworkPolicer = (*Instance)(nil)
	_ sandpit.Renewer        = (*Instance)(nil)
	_ sandpit.StateReader    = (*Instance)(nil)
)

func newInstance(b *sandbox) *Instance {
	i := &Instance{box: b, transports: make(map[int]*roundTripper)}
	i.monitor = liveness.New(b.id, i.probeGuest, b.world.livenessOptions())
	_, token := b.identityOf()
	i.guest = newHomeGuest(envd.New(i.HTTP(guest.Port), token), b.hostPath(homeDir))
	return i
}

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.box.id }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte { return handleOf(i.box.id) }

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest { return i.guest }

// HTTP implements sandpit.Instance.
func (i *Instance) HTTP(port int) http.RoundTripper {
	if port == guest.Port {
		return i.monitor.Guest(i.portTransport(port))
	}
	return i.monitor.Port(i.portTransport(port))
}

// probeGuest is a liveness.Probe.
func (i *Instance) probeGuest(ctx context.Context, asked func()) error {
	m, err := i.box.runningMachine()
	if err != nil {
		return err
	}
	asked()
	err = m.askHealth(ctx)
	if err == nil {
		return nil
	}
	if _, stateErr := i.box.runningMachine(); stateErr != nil { // paused meanwhile
		return stateErr
	}
	return err
}

func (i *Instance) portTransport(port int) *roundTripper {
	i.mu.Lock()
	defer i.mu.Unlock()
	if rt := i.transports[port]; rt != nil {
		return rt
	}
	rt := &roundTripper{instance: i, port: port, transport: &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return i.dialPort(ctx, port) },
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
	}}
	i.transports[port] = rt
	return rt
}

// roundTripper checks the sandbox's state before it uses a connection.
type roundTripper struct {
	instance  *Instance
	port      int
	transport *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (rt *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	b, sent := rt.instance.box, false
	var res *http.Response
	err := b.world.performCall(r.Context(), call{OpHTTP, b.id, rt.port}, func() error {
		if _, err := b.runningMachine(); err != nil {
			return err
		}
		var err error
		sent = true
		res, err = rt.transport.RoundTrip(r) //nolint:bodyclose // the caller closes it
		if err != nil && r.Context().Err() == nil {
			_, ended := b.runningMachine() // the better reason
			err = errors.Join(ended, err)
		}
		return err
	})
	if err == nil {
		return res, nil
	}
	if res != nil {
		_ = res.Body.Close()
	}
	if !sent && r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, err
}

// Dial implements sandpit.Dialer.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	var conn net.Conn
	err := i.box.world.performCall(ctx, call{OpDial, i.box.id, port}, func() error {
		var err error
		conn, err = i.dialPort(ctx, port)
		return err
	})
	if err != nil && conn != nil {
		_ = conn.Close()
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (i *Instance) dialPort(ctx context.Context, port int) (net.Conn, error) {
	m, err := i.box.runningMachine()
	if err != nil {
		return nil, err
	}
	conn, err := m.dialPort(ctx, port)
	if errors.Is(err, errOff) {
		if _, ended := i.box.runningMachine(); ended != nil {
			return nil, ended
		}
	}
	return conn, err
}

func (i *Instance) closeIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, rt := range i.transports {
		rt.transport.CloseIdleConnections()
	}
}

// Wait implements sandpit.Instance.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) {
	var exit sandpit.Exit
	err := i.performOp(ctx, OpWait, func() error {
		select {
		case <-i.box.ended:
			exit = i.box.exit
			return nil
		case <-i.box.ownChange():
			exit = i.box.ownExit()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return exit, err
}

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	return i.performOp(ctx, OpDestroy, func() error {
		if err := i.box.lock(ctx); err != nil {
			return err
		}
		defer i.box.unlock()
		err := i.box.removeSandbox(sandpit.Exit{Reason: "the sandbox was destroyed"})
		i.closeIdle()
		return err
	})
}

// Stop implements sandpit.Stopper.
func (i *Instance) Stop(ctx context.Context) error {
	return i.performOp(ctx, OpStop, func() error { return i.box.stopSandbox(ctx) })
}

// Start implements sandpit.Stopper.
func (i *Instance) Start(ctx context.Context) error {
	return i.performOp(ctx, OpStart, func() error { return i.box.startSandbox(ctx) })
}

// Pause implements sandpit.Pauser.
func (i *Instance) Pause(ctx context.Context) error {
	return i.performOp(ctx, OpPause, func() error { return i.box.pauseSandbox(ctx) })
}

// Resume implements sandpit.Pauser.
func (i *Instance) Resume(ctx context.Context) error {
	return i.performOp(ctx, OpResume, func() error { return i.box.resumeSandbox(ctx) })
}

// Archive implements sandpit.Archiver.
func (i *Instance) Archive(ctx context.Context) error {
	return i.performOp(ctx, OpArchive, func() error { return i.box.archiveFiles(ctx) })
}

// Restore implements sandpit.Archiver.
func (i *Instance) Restore(ctx context.Context) error {
	return i.performOp(ctx, OpRestore, func() error { return i.box.restoreFiles(ctx) })
}

// Snapshot implements sandpit.Snapshotter.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	err := i.performOp(ctx, OpSnapshot, func() error {
		var err error
		s, err = i.box.takeSnapshot(ctx, id)
		return err
	})
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	return s, nil
}

// Rollback implements sandpit.Rollbacker. It ends all programs, because a snapshot contains none.
func (i *Instance) Rollback(ctx context.Context, id sandpit.SnapshotID) error {
	return i.performOp(ctx, OpRollback, func() error { return i.box.rollBack(ctx, id) })
}

// Resize implements sandpit.Resizer. It enforces nothing.
func (i *Instance) Resize(ctx context.Context, r sandpit.Resources) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("resize sandbox %s: %w", i.box.id, err)
	}
	return i.performOp(ctx, OpResize, func() error { return i.box.resize(ctx, r) })
}

// resize changes the limits of a sandbox. They can only grow while it runs.
func (b *sandbox) resize(ctx context.Context, r sandpit.Resources) error {
	if err := b.lockInState(ctx, Running, Stopped); err != nil {
		return err
	}
	defer b.unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.spec.Resources
	if b.state == Running && (r.Memory != 0 && r.Memory < now.Memory || r.CPUs != 0 && r.CPUs < now.CPUs) {
		return sandpit.Errorf(sandpit.Conflict, "resize sandbox %s: a limit can only be lowered while it is stopped", b.id)
	}
	b.spec.Resources = sandpit.Resources{
		Memory: cmp.Or(r.Memory, now.Memory), CPUs: cmp.Or(r.CPUs, now.CPUs), Disk: cmp.Or(r.Disk, now.Disk), PIDs: cmp.Or(r.PIDs, now.PIDs),
	}
	return nil
}

// SetNetworkPolicy implements sandpit.NetworkPolicer. It enforces nothing.
func (i *Instance) SetNetworkPolicy(ctx context.Context, p sandpit.NetworkPolicy) error {
	if slices.Contains(p.Allow, "") || slices.Contains(p.Deny, "") {
		return sandpit.Errorf(sandpit.Invalid, "set network policy of sandbox %s: empty rule", i.box.id)
	}
	if p.Online {
		return sandpit.Errorf(sandpit.Conflict, "set network policy of sandbox %s: it was created offline", i.box.id)
	}
	p = p.Clone()
	return i.performOp(ctx, OpSetNetwork, func() error {
		return i.box.changeRunning(ctx, func() { i.box.network = p })
	})
}

// changeRunning changes a setting of a running sandbox.
func (b *sandbox) changeRunning(ctx context.Context, set func()) error {
	if err := b.lockInState(ctx, Running); err != nil {
		return err
	}
	defer b.unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	set()
	return nil
}

// Stats implements sandpit.Statser. It measures the living processes.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	var s sandpit.Stats
	err := i.performOp(ctx, OpStats, func() error {
		if err := i.box.lockInState(ctx, Running, Paused); err != nil {
			return err
		}
		defer i.box.unlock()
		pids := findMarked(i.box.dir)
		cpu, memory := measureUsage(pids)
		s = sandpit.Stats{At: time.Now(), CPU: cpu, Memory: memory, Disk: diskUsage(i.box.dir), PIDs: len(pids)}
		return nil
	})
	return s, err
}

// performOp performs an operation on a sandbox, and applies the next fault for it.
func (i *Instance) performOp(ctx context.Context, op Op, do func() error) error {
	if err := i.box.world.performCall(ctx, call{op: op, id: i.box.id}, do); err != nil {
		return fmt.Errorf("%s sandbox %s: %w", op, i.box.id, err)
	}
	return nil
}
