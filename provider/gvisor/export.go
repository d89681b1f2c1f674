package gvisor

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

// An exported snapshot is a tar stream with the description, the files in the order of
// exportedFiles, and their sums. Importing fails at unexpected names, another order, and sizes
// that differ from the description.
const sumsName = "sha256.json"

// exportedFiles returns the names of all files of a snapshot.
func exportedFiles() []string { return append(snapshotFileNames(), rootImage, guestImage) }

// checkPortable returns Unsupported for a sandbox that needs more than its own files.
func checkPortable(r record) error {
	if len(r.Shown) > 0 || len(r.Spec.Mounts) > 0 {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "it shows directories of this machine, which other machines do not have"),
			"take snapshots of sandboxes whose image is not the machine itself, and that have no mounts")
	}
	return nil
}

// ExportSnapshot implements sandpit.SnapshotKeeper.
//
// Unsupported: the sandbox shows directories of the machine.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, to io.Writer) error {
	state, err := p.states.snapshots.Read(string(id))
	if err == nil {
		err = checkPortable(state.Record)
	}
	if err == nil {
		err = p.writeSnapshot(ctx, id, state, to)
	}
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", id, err)
	}
	return nil
}

func (p *Provider) writeSnapshot(ctx context.Context, id sandpit.SnapshotID, state kernelState, to io.Writer) error {
	w := tar.NewWriter(to)
	if err := writeJSONEntry(w, kernelDescription, state); err != nil {
		return err
	}
	sums := make(map[string]string)
	for _, name := range exportedFiles() {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := p.states.snapshots.OpenFile(string(id), name, state.Sizes[name])
		if err != nil {
			return err
		}
		sums[name], err = writeFileEntry(ctx, w, name, state.Sizes[name], f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if err := writeJSONEntry(w, sumsName, sums); err != nil {
		return err
	}
	return w.Close()
}

func writeJSONEntry(w *tar.Writer, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// writeFileEntry adds a file and returns its sum.
func writeFileEntry(ctx context.Context, w *tar.Writer, name string, size int64, f io.Reader) (string, error) {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size}); err != nil {
		return "", err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), untilDone{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// untilDone is a reader that fails when a context ends.
type untilDone struct {
	ctx  context.Context //nolint:containedctx // io.Reader has no context
	from io.Reader
}

// Read implements io.Reader.
func (r untilDone) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(b)
}

// ImportSnapshot implements sandpit.SnapshotKeeper.
//
// Unsupported: the sandbox shows directories of a machine.
func (p *Provider) ImportSnapshot(ctx context.Context, id sandpit.SnapshotID, from io.Reader) (sandpit.Snapshot, error) {
	state, err := p.importSnapshot(ctx, id, tar.NewReader(untilDone{ctx, from}))
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("import snapshot %s: %w", id, err)
	}
	return p.describeSnapshot(id, state), nil
}

func (p *Provider) importSnapshot(ctx context.Context, id sandpit.SnapshotID, r *tar.Reader) (kernelState, error) {
	if p.states.snapshots.Dir == "" {
		return kernelState{}, sandpit.Errorf(sandpit.Unsupported, "no directory is configured for snapshots")
	}
	if err := id.Validate(); err != nil {
		return kernelState{}, err
	}
	if p.states.snapshots.Has(string(id)) {
		return kernelState{}, sandpit.Errorf(sandpit.AlreadyExists, "it exists already")
	}
	var state kernelState
	if err := readJSONEntry(r, kernelDescription, &state); err != nil {
		return state, err
	}
	if err := checkImported(&state); err != nil {
		return state, err
	}
	draft, err := p.states.snapshots.Begin(string(id))
	if err != nil {
		return state, err
	}
	defer draft.Discard()
	found := make(map[string]string)
	for _, name := range exportedFiles() {
		if found[name], err = receiveFile(draft, r, name, state.Sizes[name]); err != nil {
			return state, p.states.snapshots.ExplainFull(err)
		}
	}
	var want map[string]string
	if err := readJSONEntry(r, sumsName, &want); err != nil {
		return state, err
	}
	for name, sum := range found {
		if want[name] != sum {
			return state, sandpit.Errorf(sandpit.Invalid, "%s is damaged", name)
		}
	}
	return draft.Commit(ctx, func(sizes map[string]int64) kernelState {
		state.Format, state.Sizes = kernelFormat, sizes
		return state
	})
}

// receiveFile adds the next file of the stream to the draft, and returns its sum.
func receiveFile(draft *savedstate.Draft[kernelState], r *tar.Reader, name string, size int64) (string, error) {
	if err := nextEntry(r, name, size); err != nil {
		return "", err
	}
	f, err := draft.Create(name)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), r)
	if _, isPath := errors.AsType[*os.PathError](err); err != nil && !isPath || err == nil && n != size {
		return "", sandpit.Errorf(sandpit.Invalid, "%s is truncated: %w", name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), err
}

// checkImported returns an error for a description that no export has written, and resets what
// only this machine decides.
func checkImported(state *kernelState) error {
	r := &state.Record
	if err := r.ID.Validate(); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: %w", kernelDescription, err)
	}
	if r.Group != "" && r.Group.Validate() != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: invalid control group %q", kernelDescription, string(r.Group))
	}
	if err := checkPortable(*r); err != nil {
		return err
	}
	if orDefaults(r.Spec.Resources, r.Limits.Resources) != r.Limits.Resources {
		return sandpit.Errorf(sandpit.Invalid, "%s: limits and spec differ", kernelDescription)
	}
	// The defaults of the other machine become explicit limits on this one.
	r.Spec.Resources = r.Limits.Resources
	r.Token, r.Spec.Env = "", nil
	if err := validateSpec(r.Spec); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: %w", kernelDescription, err)
	}
	for _, name := range exportedFiles() {
		if size, ok := state.Sizes[name]; !ok || size < 0 {
			return sandpit.Errorf(sandpit.Invalid, "%s: %s has no size", kernelDescription, name)
		}
	}
	if r.Limits.Kernel < 0 || r.Limits.Kernel > memoryPerTreeByte*state.Sizes[layerPrefix+layerFileNames()[1]] {
		r.Limits.Kernel = 0
	}
	return nil
}

// nextEntry expects a file with a name and, unless it is negative, a size.
func nextEntry(r *tar.Reader, name string, size int64) error {
	h, err := r.Next()
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "unexpected end before %s: %w", name, err)
	}
	if h.Name != name || h.Typeflag != tar.TypeReg || size >= 0 && h.Size != size {
		return sandpit.Errorf(sandpit.Invalid, "unexpected file %.80q of %d bytes, want %s of %d", h.Name, h.Size, name, size)
	}
	return nil
}

func readJSONEntry(r *tar.Reader, name string, v any) error {
	if err := nextEntry(r, name, -1); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r, savedstate.MaxDescription+1))
	if err == nil && len(data) > savedstate.MaxDescription {
		err = errors.New("it is too large")
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: %w", name, err)
	}
	return nil
}
