package manager

import (
	"context"
	"io"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/layer"
)

// The bounds of a comparison.
const (
	maxDiffs   = 2 // at a time: each needs memory for two lists of files
	maxChanges = 20_000
	maxPatches = 4 << 20 // bytes
)

// Side is one side of a comparison: a sandbox, a snapshot by its ID or name, or, if zero, the image
// that the other side was created from.
type Side struct {
	Sandbox  sandpit.ID
	Snapshot string
}

// DiffRequest asks for a comparison of files.
type DiffRequest struct {
	// Owner is the owner of the snapshots. The caller checks the owners of the sandboxes.
	Owner    string
	From, To Side
	// Patch asks also for the changes of small texts.
	Patch bool
}

// Diff returns the files that differ between two sides. Mounts are not compared.
//
// NotFound: no such sandbox or snapshot. Invalid: both sides are the image, or they were created
// from different images. Conflict: a sandbox does not run. Unsupported: its provider cannot do
// that. Exhausted: there are more files than can be compared.
func (ss *Snapshots) Diff(ctx context.Context, r DiffRequest) (sandpit.FileDiff, error) {
	begin := time.Now()
	d, err := ss.compareSides(ctx, r)
	ss.reportDiff(ctx, r, begin, err)
	return d, err
}

func (ss *Snapshots) compareSides(ctx context.Context, r DiffRequest) (sandpit.FileDiff, error) {
	if r.From == (Side{}) && r.To == (Side{}) {
		return sandpit.FileDiff{}, sandpit.Errorf(sandpit.Invalid, "compare: neither side is a sandbox or a snapshot")
	}
	if ss.core.closing.Load() || !ss.core.ops.begin() {
		return sandpit.FileDiff{}, errClosed
	}
	defer ss.core.ops.end()
	ctx, leave := ss.core.ops.join(ctx)
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, ss.o.CreateTimeout,
		sandpit.Errorf(sandpit.Timeout, "compare: timed out after %v seconds", ss.o.CreateTimeout.Seconds()))
	defer cancel()
	slot, err := awaitSlot(ctx, ss.slots.diffs, r.Owner)
	if err != nil {
		return sandpit.FileDiff{}, err
	}
	defer slot.Release()
	from, image, err := ss.readSide(ctx, r, r.From)
	if err != nil {
		return sandpit.FileDiff{}, causeOf(ctx, err)
	}
	to, other, err := ss.readSide(ctx, r, r.To)
	if err != nil {
		return sandpit.FileDiff{}, causeOf(ctx, err)
	}
	if image != "" && other != "" && image != other {
		return sandpit.FileDiff{}, sandpit.Errorf(sandpit.Invalid, "compare: created from different images %.100q and %.100q", image, other)
	}
	limits := layer.Limits{Changes: maxChanges}
	if r.Patch {
		limits.Patches = maxPatches
	}
	return layer.Compare(from, to, limits), nil
}

// readSide returns the layer of a side, and its image if that is known. A sandbox that was created
// from a snapshot has no image here, because the snapshot may be deleted.
func (ss *Snapshots) readSide(ctx context.Context, r DiffRequest, s Side) (*layer.Layer, sandpit.Image, error) {
	switch {
	case s.Sandbox != "":
		return ss.readSandbox(ctx, s.Sandbox, r.Patch)
	case s.Snapshot != "":
		return ss.readSnapshot(ctx, r.Owner, s.Snapshot, r.Patch)
	default:
		return nil, "", nil
	}
}

func (ss *Snapshots) readSandbox(ctx context.Context, id sandpit.ID, texts bool) (*layer.Layer, sandpit.Image, error) {
	h, err := ss.useSandbox(ctx, id)
	if err != nil {
		return nil, "", err
	}
	defer h.Release()
	reader, ok := as[sandpit.LayerReader](h.Instance())
	if !ok {
		return nil, "", sandpit.Errorf(sandpit.Unsupported, "compare sandbox %s: its provider cannot list changes", id)
	}
	l, err := readLayer(h.Context(), texts, reader.ReadLayer)
	return l, rootImage(h.box.currentRow().Spec), err
}

func (ss *Snapshots) readSnapshot(ctx context.Context, owner, name string, texts bool) (*layer.Layer, sandpit.Image, error) {
	n, release, err := ss.holdReady(ctx, owner, name)
	if err != nil {
		return nil, "", err
	}
	defer release()
	keeper, err := ss.findKeeper(ctx, n.Provider)
	if err != nil {
		return nil, "", err
	}
	l, err := readLayer(ctx, texts, func(ctx context.Context) (io.ReadCloser, error) { return keeper.ReadSnapshotLayer(ctx, n.ID) })
	return l, rootImage(n.Spec), err
}

// rootImage returns the image that a layer is based on, "" if it is unknown.
func rootImage(s sandpit.Spec) sandpit.Image {
	if _, ok := s.Image.Snapshot(); ok {
		return ""
	}
	if s.Image == "" {
		return sandpit.HostImage
	}
	return s.Image
}

// readLayer opens and reads a layer until its end, or the context's.
func readLayer(ctx context.Context, texts bool, open func(context.Context) (io.ReadCloser, error)) (*layer.Layer, error) {
	stream, err := open(ctx) // the stream ends with the context
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() }) // ends a blocked read
	defer stop()
	l, err := layer.Read(ctx, stream, texts)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	_ = stream.Close() // only read from
	return l, err
}

// String returns the name of a side for events.
func (s Side) String() string {
	switch {
	case s.Sandbox != "":
		return string(s.Sandbox)
	case s.Snapshot != "":
		return "snapshot:" + cutText(s.Snapshot, store.MaxName)
	default:
		return "image"
	}
}

// reportDiff records an event: contents of a sandbox were read.
func (ss *Snapshots) reportDiff(ctx context.Context, r DiffRequest, begin time.Time, err error) {
	ss.events.Record(Report{
		Request: RequestIDOf(ctx), Actor: actorOf(ctx, r.Owner), Action: "compare", Sandbox: r.To.Sandbox,
		Args: map[string]string{"from": r.From.String(), "to": r.To.String()}, Err: err, Took: time.Since(begin),
	})
}
