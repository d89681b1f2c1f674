package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/ocilayer"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

const (
	layerDescription  = "record.json"   // of a layerState
	kernelDescription = "manifest.json" // of a kernelState

	rootImage  = "root.erofs"
	guestImage = "guest.erofs"
	// layerPrefix precedes the names of layerFileNames beside those of kernelFileNames.
	layerPrefix = "layer-"

	layerFormat = 1
	// kernelFormat changes with what must be equal for a kernel to be loaded, besides the
	// version of gVisor: where its conduit is, and how the guest is quiesced and continued.
	kernelFormat = 1

	// Directories beside those of stopped sandboxes. They are not valid IDs.
	checkpointsName = "checkpoints"
	archivedName    = "archived"
)

// layerFileNames are gVisor's names of the files that a layer is saved in.
func layerFileNames() []string { return ocilayer.FileNames() }

// kernelFileNames are gVisor's names of the files that a kernel is saved in.
func kernelFileNames() []string {
	return []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}
}

// snapshotFileNames are the names of all files that a kernel writes for a snapshot.
func snapshotFileNames() []string {
	names := kernelFileNames()
	for _, name := range layerFileNames() {
		names = append(names, layerPrefix+name)
	}
	return names
}

// isPagesFile reports whether a file has contents of memory: these files are large, and have
// whole pages.
func isPagesFile(name string) bool { return strings.HasSuffix(name, checkpointfiles.PagesFileName) }

// layerState describes a saved state without memory: a stopped sandbox or a checkpoint.
type layerState struct {
	Format int `json:"format"`
	// Record includes the environment, which is nowhere else while the sandbox is stopped.
	Record record `json:"record"`
	// Sizes are those of the files, in bytes.
	Sizes map[string]int64 `json:"sizes"`
}

// bytes returns how many bytes all files have, the image included.
func (s layerState) bytes() (sum int64) {
	for _, size := range s.Sizes {
		sum += size
	}
	return sum
}

// kernelState describes a saved state with memory: a suspended sandbox or a snapshot.
type kernelState struct {
	Format int `json:"format"`
	// Engine is the version of gVisor that can load it.
	Engine string `json:"engine"`
	// Record is that of the sandbox. It includes the key and the environment of a suspended
	// sandbox, which are nowhere else then, and neither of a snapshot's.
	Record record `json:"record"`
	// Bare means that there is no memory in it.
	Bare bool `json:"bare,omitempty"`
	// Decisions are a suspended sandbox's network log.
	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	SavedAt   time.Time                 `json:"saved_at"`
	// Sizes are those of the files, in bytes.
	Sizes map[string]int64 `json:"sizes"`
}

// bytes returns how many bytes the files have without the image and the guest, which are
// shared.
func (s kernelState) bytes() (sum int64) {
	for name, n := range s.Sizes {
		if name != rootImage && name != guestImage {
			sum += n
		}
	}
	return sum
}

// hasLayer reports whether the files were saved beside the memory.
func (s kernelState) hasLayer() bool {
	return !slices.ContainsFunc(layerFileNames(), func(name string) bool {
		_, ok := s.Sizes[layerPrefix+name]
		return !ok
	})
}

type (
	layerStore  = savedstate.Store[layerState]
	kernelStore = savedstate.Store[kernelState]
)

func newLayerStore(dir, kind string) *layerStore {
	return &layerStore{
		Dir: dir, Kind: kind, Description: layerDescription, CheckName: checkID, Check: checkLayerState, IsLarge: isPagesFile,
	}
}

func newKernelStore(dir, kind string, checkName func(string) error) *kernelStore {
	return &kernelStore{Dir: dir, Kind: kind, Description: kernelDescription, CheckName: checkName, IsLarge: isPagesFile}
}

func checkID(name string) error { return sandpit.ID(name).Validate() }

func checkSnapshotID(name string) error { return sandpit.SnapshotID(name).Validate() }

func checkLayerState(name string, s layerState) error {
	if string(s.Record.ID) != name {
		return fmt.Errorf("it belongs to sandbox %q", string(s.Record.ID))
	}
	if s.Format != layerFormat {
		return fmt.Errorf("format %d, want %d", s.Format, layerFormat)
	}
	return nil
}

// savedStates are the saved states of all sandboxes. A sandbox is stopped while stopped has
// it, and suspended while suspended has it: what an engine has of it then is a leftover of
// an interrupted stop, start, suspend or resume.
type savedStates struct {
	locks       savedstate.Locks
	stopped     *layerStore
	suspended   *kernelStore
	snapshots   *kernelStore
	checkpoints *layerStore // the last checkpoint of each running sandbox that has one
	archived    archiveRecords
	archive     archive.Store // nil: not configured

	// The bounds of checkpoints, see Config. 0: no bound.
	checkpointBytes int64
	checkpointAge   time.Duration
}

func newSavedStates(cfg Config) *savedStates {
	s := &savedStates{
		locks:     savedstate.Locks{Dir: cfg.KeepDir},
		stopped:   newLayerStore(cfg.KeepDir, "stopped sandbox"),
		suspended: newKernelStore(cfg.SuspendDir, "suspended sandbox", checkID),
		snapshots: newKernelStore(cfg.SnapshotDir, "snapshot", checkSnapshotID),
		archive:   cfg.Archive, checkpointBytes: cfg.CheckpointBytes, checkpointAge: cfg.CheckpointAge,
	}
	checkpoints := ""
	if cfg.KeepDir != "" {
		checkpoints = filepath.Join(cfg.KeepDir, checkpointsName)
		s.archived.dir = filepath.Join(cfg.KeepDir, archivedName)
	}
	s.checkpoints = newLayerStore(checkpoints, "checkpoint of sandbox")
	return s
}

// open creates the directories that are missing, and removes expired checkpoints and what
// killed processes have left.
func (s *savedStates) open() error {
	if s.canStop() {
		if err := errors.Join(s.checkpoints.Create(), s.archived.createDir()); err != nil {
			return err
		}
	}
	for _, store := range []*kernelStore{s.suspended, s.snapshots} {
		if store.Dir == "" {
			continue
		}
		if err := store.Create(); err != nil {
			return err
		}
	}
	return errors.Join(
		s.checkpoints.Sweep(), s.dropExpiredCheckpoints(), s.archived.sweep(), s.stopped.Sweep(), s.snapshots.Sweep(), s.suspended.Sweep())
}

// canStop reports whether there is a directory for stopped sandboxes.
func (s *savedStates) canStop() bool { return s.stopped.Dir != "" }

// lock waits until no other process stops, starts, saves or destroys the sandbox. The caller
// unlocks by closing the file.
func (s *savedStates) lock(ctx context.Context, id sandpit.ID) (*os.File, error) {
	return s.locks.Lock(ctx, string(id))
}

// lockFor is lock for what writes to a store of states with memory.
//
// Unsupported: there is no directory for them.
func (s *savedStates) lockFor(ctx context.Context, id sandpit.ID, store *kernelStore) (*os.File, error) {
	if store.Dir == "" || !s.canStop() {
		return nil, sandpit.Errorf(sandpit.Unsupported, "no directory is configured for %ss", store.Kind)
	}
	return s.lock(ctx, id)
}

// notRunning returns a Conflict for a sandbox that is stopped or suspended, nil for others.
func (s *savedStates) notRunning(id sandpit.ID) error {
	switch {
	case s.stopped.Has(string(id)):
		return stoppedError(id)
	case s.suspended.Has(string(id)):
		return suspendedError(id)
	}
	return nil
}

func stoppedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is stopped", id)
}

func suspendedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is suspended", id)
}

// records returns the records of all stopped and suspended sandboxes.
func (s *savedStates) records() ([]record, error) {
	stopped, err := s.stopped.List()
	if err != nil {
		return nil, err
	}
	suspended, err := s.suspended.List()
	if err != nil {
		return nil, err
	}
	all := make([]record, 0, len(stopped)+len(suspended))
	for _, state := range stopped {
		all = append(all, state.Record)
	}
	for _, state := range suspended {
		all = append(all, state.Record)
	}
	return all, nil
}

// archivedRecords returns the records of sandboxes that are archived, or that have nothing
// but a checkpoint.
func (s *savedStates) archivedRecords() ([]record, error) {
	if !s.canStop() {
		return nil, nil
	}
	list, err := s.archived.list()
	if err != nil {
		return nil, err
	}
	names, err := s.checkpoints.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		state, err := s.checkpoints.Read(name)
		if err != nil {
			state.Record = record{ID: sandpit.ID(name)} // a damaged one does not hide the others
		}
		list = append(list, state.Record)
	}
	return list, nil
}

// find returns the record of a sandbox that is in no engine. exists is false if there is
// nothing of it.
func (s *savedStates) find(id sandpit.ID) (rec record, exists bool, err error) {
	if !s.canStop() {
		return rec, false, nil
	}
	suspended, err := s.suspended.Read(string(id))
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return suspended.Record, err == nil, err
	}
	state, err := s.stopped.Read(string(id))
	if sandpit.CodeOf(err) == sandpit.NotFound {
		var archived archiveRecord
		archived, err = s.archived.read(id)
		state.Record = archived.State.Record
	}
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return state.Record, err == nil, err
	}
	if !s.checkpoints.Has(string(id)) {
		return rec, false, nil
	}
	if state, err = s.checkpoints.Read(string(id)); err != nil {
		state.Record = record{ID: id} // enough to remove it
	}
	return state.Record, true, nil
}

// remove removes all saved states of a sandbox but its snapshots. The caller has the lock.
func (s *savedStates) remove(ctx context.Context, id sandpit.ID) error {
	name := string(id)
	return errors.Join(s.stopped.Remove(name), s.checkpoints.Remove(name), s.suspended.Remove(name), s.removeArchive(ctx, id))
}

// detachStopped ends that a sandbox is stopped. The caller discards the draft.
//
// A checkpoint from before the stop must not be found afterwards: the files of the stop
// become the checkpoint instead, or the sandbox has no checkpoint until the next one.
func (s *savedStates) detachStopped(ctx context.Context, id sandpit.ID) (*savedstate.Draft[layerState], error) {
	if err := s.archived.setAside(id); err != nil {
		return nil, err
	}
	had := s.checkpoints.Has(string(id))
	if had {
		if err := errors.Join(s.checkpoints.Remove(string(id)), savedstate.SyncDir(s.checkpoints.Dir)); err != nil {
			return nil, err
		}
	}
	draft, err := s.stopped.Detach(string(id))
	if err != nil || draft == nil || !had {
		return draft, err
	}
	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()
	if release, err := s.reserveCheckpoint(ctx, id, draft.Size(layerFileNames())); err == nil {
		defer release()
		_ = draft.MoveTo(s.checkpoints)
	}
	return draft, nil
}

// bytes returns how many bytes a stopped, suspended or archived sandbox has on disk or in the
// archive.
func (s *savedStates) bytes(id sandpit.ID) int64 {
	if !s.canStop() {
		return 0
	}
	bytes := s.stopped.Bytes(string(id)) + s.suspended.Bytes(string(id))
	if s.archived.has(id) {
		if r, err := s.archived.read(id); err == nil { // a damaged record cannot be restored either
			bytes += r.Size
		}
	}
	return bytes
}

// layerFiles are the open files of a layerState.
type layerFiles struct {
	record record
	root   *os.File
	layer  []*os.File // in the order of layerFileNames
	size   int64
	tree   int64 // bytes of the file that describes the tree
	isCopy bool  // the files belong to another sandbox, too
}

func (f layerFiles) close() {
	if f.root != nil {
		_ = f.root.Close() // only read
	}
	closeAll(f.layer)
}

// openLayerState opens the files of a stopped sandbox or a checkpoint. The caller has the
// sandbox's lock.
func openLayerState(s *layerStore, id sandpit.ID) (layerFiles, error) {
	state, err := s.Read(string(id))
	if err != nil {
		return layerFiles{}, err
	}
	open := func(file string) (*os.File, error) { return s.OpenFile(string(id), file, state.Sizes[file]) }
	files, err := openLayerFiles(open, "", state.Sizes)
	files.record = state.Record
	return files, err
}

// openLayerOf opens the files that were saved beside the memory, as those of a stopped
// sandbox.
func openLayerOf(s *kernelStore, name string, state kernelState) (layerFiles, error) {
	open := func(file string) (*os.File, error) { return s.OpenFile(name, file, state.Sizes[file]) }
	files, err := openLayerFiles(open, layerPrefix, state.Sizes)
	files.record = state.Record
	return files, err
}

// openLayerFiles opens the files of a layer, whose names have the prefix, and the image.
func openLayerFiles(open func(file string) (*os.File, error), prefix string, sizes map[string]int64) (files layerFiles, err error) {
	for _, name := range layerFileNames() {
		f, err := open(prefix + name)
		if err != nil {
			files.close()
			return layerFiles{}, err
		}
		files.layer = append(files.layer, f)
		files.size += sizes[prefix+name]
	}
	files.tree = sizes[prefix+checkpointfiles.FSCheckpointMultiTarFileName]
	if files.root, err = open(rootImage); err != nil {
		files.close()
		return layerFiles{}, err
	}
	files.size += sizes[rootImage]
	return files, nil
}

// kernelFiles are the open files of a kernelState.
type kernelFiles struct {
	state  kernelState
	root   *os.File
	guest  *os.File
	kernel []*os.File // in the order of kernelFileNames
}

func (f kernelFiles) close() {
	for _, one := range []*os.File{f.root, f.guest} {
		if one != nil {
			_ = one.Close() // only read
		}
	}
	closeAll(f.kernel)
}

// openKernelState opens the files of a suspended sandbox or a snapshot, and checks that they
// are complete.
func openKernelState(s *kernelStore, name string) (files kernelFiles, err error) {
	if files.state, err = s.Read(name); err != nil {
		return files, err
	}
	for _, file := range append(kernelFileNames(), rootImage, guestImage) {
		f, err := s.OpenFile(name, file, files.state.Sizes[file])
		if err != nil {
			files.close()
			return kernelFiles{}, err
		}
		switch file {
		case rootImage:
			files.root = f
		case guestImage:
			files.guest = f
		default:
			files.kernel = append(files.kernel, f)
		}
	}
	return files, nil
}
