package fake

import (
	"context"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Op is an operation that a Fault can affect.
type Op string

// The operations. OpDial is a raw connection and OpHTTP one round trip. Every call of a guest is one
// of those two, to the guest's port.
const (
	OpCreate     Op = "create"
	OpList       Op = "list"
	OpAttach     Op = "attach"
	OpDestroy    Op = "destroy"
	OpWait       Op = "wait"
	OpDial       Op = "dial"
	OpHTTP       Op = "http"
	OpClaim      Op = "claim"
	OpStop       Op = "stop"
	OpStart      Op = "start"
	OpPause      Op = "pause"
	OpResume     Op = "resume"
	OpSuspend    Op = "suspend"
	OpCheckpoint Op = "checkpoint"
	OpRevive     Op = "revive"
	OpArchive    Op = "archive"
	OpRestore    Op = "restore"
	OpSnapshot   Op = "snapshot"
	OpResize     Op = "resize"
	OpStats      Op = "stats"
	OpSetNetwork Op = "set network"
	OpRenew      Op = "renew"
	OpReadState  Op = "read state"

	OpReadAccount Op = "read account"

	OpCreateVolume Op = "create volume"
	OpRemoveVolume Op = "remove volume"
	OpVolumeSize   Op = "volume size"

	OpRollback       Op = "roll back"
	OpReadLayer      Op = "read layer"
	OpListSnapshots  Op = "list snapshots"
	OpRemoveSnapshot Op = "remove snapshot"
	OpExportSnapshot Op = "export snapshot"
	OpImportSnapshot Op = "import snapshot"
)

// Fault is an injected failure or delay. The zero value of a field except Op means its stated
// default.
type Fault struct {
	// Op is the affected operation.
	Op Op
	// ID is the affected sandbox. Default: any. OpList and the operations of volumes and existing
	// snapshots have no sandbox.
	ID sandpit.ID
	// Port is the port of OpDial and OpHTTP. Default: any.
	Port int
	// Delay is the added delay. It ends early, with the context's error, when the context ends.
	// Default: none.
	Delay time.Duration
	// Err is returned. Default: none, so the fault only delays.
	Err error
	// After performs the operation first, and delays or loses its result.
	After bool
	// Times is how often the fault happens. Default: once. Negative: always.
	Times int
}

func (f *Fault) matchesCall(op Op, id sandpit.ID, port int) bool {
	return f.Op == op && (f.ID == "" || f.ID == id) && (f.Port == 0 || f.Port == port)
}

// Inject adds a fault. Faults for the same operation happen in the order in which they were added.
// The returned function removes the fault.
func (w *World) Inject(f Fault) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	w.faults = append(w.faults, &f)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.faults = slices.DeleteFunc(w.faults, func(other *Fault) bool { return other == &f })
	}
}

// Calls returns how often op was called, on the sandbox id or, if that is empty, on any. Failed calls
// count.
func (w *World) Calls(op Op, id sandpit.ID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for key, count := range w.calls {
		if key.op == op && (id == "" || key.id == id) {
			n += count
		}
	}
	return n
}

type callKey struct {
	op Op
	id sandpit.ID
}

// call is one operation before it is performed.
type call struct {
	op   Op
	id   sandpit.ID
	port int
}

// performCall performs a call, and applies the next fault for it.
func (w *World) performCall(ctx context.Context, c call, do func() error) error {
	f := w.takeFault(c)
	if f == nil {
		return do()
	}
	if f.After {
		if err := do(); err != nil {
			return err
		}
	}
	if err := sleepFor(ctx, f.Delay); err != nil {
		return err
	}
	if f.Err != nil || f.After {
		return f.Err
	}
	return do()
}

// takeFault counts a call and returns the next fault for it, or nil.
func (w *World) takeFault(c call) *Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[callKey{c.op, c.id}]++
	i := slices.IndexFunc(w.faults, func(f *Fault) bool { return f.matchesCall(c.op, c.id, c.port) })
	if i < 0 {
		return nil
	}
	f := w.faults[i]
	if f.Times--; f.Times == 0 {
		w.faults = slices.Delete(w.faults, i, i+1)
	}
	return f
}

func sleepFor(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
