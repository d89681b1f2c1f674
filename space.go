package sandpit

import "context"

// SaveEstimator is an optional ability of an Instance whose saved state is on the disk of
// this machine.
type SaveEstimator interface {
	// EstimateSave returns the approximate size on disk, in bytes, of the saved state of a
	// running or paused sandbox: its files and, if memory is true, its memory. The result
	// may depend on what the sandbox reports, so it is a hint; see WithAdmit.
	EstimateSave(ctx context.Context, memory bool) (int64, error)
}

// Admit decides whether a saved state of this size may stay on the disk. The caller of the
// operation receives its error.
type Admit func(bytes int64) error

type admitKey struct{}

// WithAdmit returns a context for Stop, Suspend, Checkpoint, Archive, Restore and Snapshot.
// A provider that knows the size of a saved state calls admit with it before the operation
// takes effect. If admit returns an error, the sandbox is unchanged and what was written is
// removed.
func WithAdmit(ctx context.Context, admit Admit) context.Context {
	return context.WithValue(ctx, admitKey{}, admit)
}

// AdmitOf returns the Admit of ctx, for providers. It is never nil.
func AdmitOf(ctx context.Context) Admit {
	if admit, ok := ctx.Value(admitKey{}).(Admit); ok && admit != nil {
		return admit
	}
	return func(int64) error { return nil }
}
