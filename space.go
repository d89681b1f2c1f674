package sandpit

import "context"

// SaveEstimator is an optional ability of an Instance that is saved on the disk of this
// machine.
type SaveEstimator interface {
	// EstimateSave returns about how many bytes of disk it takes to save a running or paused
	// sandbox: its files, and with memory its memory as well. What the sandbox itself says
	// may be part of the answer, so it is a hint; see WithAdmit.
	EstimateSave(ctx context.Context, memory bool) (int64, error)
}

// Admit decides whether what was written of a sandbox may stay on the disk. Its error is a
// reason for the caller.
type Admit func(bytes int64) error

type admitKey struct{}

// WithAdmit returns a context for Stop, Suspend, Checkpoint, Archive, Restore and Snapshot.
// A provider that knows how many bytes it takes to save a sandbox asks admit with their
// number before they count. If admit returns an error, the sandbox is as before and nothing
// of what was written is left.
func WithAdmit(ctx context.Context, admit Admit) context.Context {
	return context.WithValue(ctx, admitKey{}, admit)
}

// AdmitOf returns what decides about bytes that are written with ctx. It is never nil.
// Providers call it.
func AdmitOf(ctx context.Context) Admit {
	if admit, ok := ctx.Value(admitKey{}).(Admit); ok && admit != nil {
		return admit
	}
	return func(int64) error { return nil }
}
