package gvisor

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

var _ sandpit.Archiver = (*Instance)(nil)

// archiveRecords is a directory with a file for each archived sandbox. The sandbox is archived
// while that file exists and the sandbox is neither stopped nor in an engine: otherwise the
// file, and the object that it names, are leftovers. Each object is named by a file.
type archiveRecords struct{ dir string } // empty: archiving is not possible

// archiveRecord describes an archived sandbox. Its environment and key are in this file, and
// not in the object.
type archiveRecord struct {
	State layerState `json:"kept"`
	// Key names the object.
	Key string `json:"key"`
	// Size is in bytes, Sum is the SHA-256 of the object in hexadecimal.
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
}

const (
	archivedSuffix = ".json"
	asideSuffix    = ".left" // of files that name objects which may be leftovers
	objectSuffix   = ".tar.zst"
)

func archivedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is archived", id)
}

func (a archiveRecords) createDir() error {
	if err := os.Mkdir(a.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create the directory of archived sandboxes: %w", err)
	}
	return nil
}

func (a archiveRecords) path(id sandpit.ID) string {
	return filepath.Join(a.dir, string(id)+archivedSuffix)
}

func (a archiveRecords) has(id sandpit.ID) bool {
	if a.dir == "" {
		return false
	}
	_, err := os.Lstat(a.path(id))
	return err == nil
}

// read returns the record of an archived sandbox.
//
// NotFound: it is not archived.
func (a archiveRecords) read(id sandpit.ID) (archiveRecord, error) {
	var r archiveRecord
	f, err := os.Open(a.path(id))
	if err != nil {
		return r, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, savedstate.MaxDescription)).Decode(&r)
	if err == nil {
		err = checkLayerState(string(id), r.State)
	}
	if err == nil && r.Key == "" {
		err = errors.New("it names no object")
	}
	if err != nil {
		return r, sandpit.Errorf(sandpit.Internal, "read the record of archived sandbox %s: %w", id, err)
	}
	return r, nil
}

// writeFile writes a record to a file, in one step.
func (a archiveRecords) writeFile(id sandpit.ID, name string, r archiveRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return savedstate.WriteFile(a.dir, string(id), name, data)
}

// sweep removes what killed processes have left.
func (a archiveRecords) sweep() error {
	if a.dir == "" {
		return nil
	}
	return savedstate.SweepDir(a.dir, checkID)
}

// setAside makes the archive of a sandbox a leftover, without a request to the archive.
func (a archiveRecords) setAside(id sandpit.ID) error {
	if !a.has(id) {
		return nil
	}
	aside := filepath.Join(a.dir, string(id)+"-"+strings.ToLower(rand.Text())+asideSuffix)
	if err := os.Rename(a.path(id), aside); err != nil {
		return err
	}
	return savedstate.SyncDir(a.dir)
}

// objectFiles returns the files that name objects of a sandbox.
func (a archiveRecords) objectFiles(id sandpit.ID) ([]string, error) {
	list, err := filepath.Glob(filepath.Join(a.dir, string(id)+"-*"+asideSuffix))
	if a.has(id) {
		list = append(list, a.path(id))
	}
	return list, err
}

// list returns the records of all archived sandboxes.
func (a archiveRecords) list() ([]record, error) {
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return nil, fmt.Errorf("list the archived sandboxes: %w", err)
	}
	var all []record
	for _, e := range entries {
		name, isRecord := strings.CutSuffix(e.Name(), archivedSuffix)
		id := sandpit.ID(name)
		if !isRecord || id.Validate() != nil {
			continue
		}
		r, err := a.read(id)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // restored meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, r.State.Record)
	}
	return all, nil
}

// Archive implements sandpit.Archiver. The image is archived too, so that the archive is all
// that is needed.
//
// Unsupported: the Provider has no archive. Unavailable: the archive cannot be reached.
func (i *Instance) Archive(ctx context.Context) error {
	if err := i.lifecycle.archive(ctx); err != nil {
		return fmt.Errorf("archive sandbox %s: %w", i.id, err)
	}
	return nil
}

func (l *lifecycle) archive(ctx context.Context) error {
	s := l.states
	lock, err := s.lockForArchive(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	state, err := s.stopped.Read(string(l.id))
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := l.provider.locateSandbox(ctx, l.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "it is not stopped")
	}
	if err != nil {
		return err
	}
	if err := errors.Join(s.removeArchive(ctx, l.id), l.endLeftover(ctx)); err != nil {
		return err
	}
	files, err := openLayerState(s.stopped, l.id)
	if err != nil {
		return err
	}
	defer files.close()
	name := string(l.id) + "-" + strings.ToLower(rand.Text())
	r := archiveRecord{Key: name + objectSuffix}
	if err := s.archived.writeFile(l.id, name+asideSuffix, r); err != nil {
		return s.stopped.ExplainFull(err)
	}
	r.State = state
	err = s.upload(ctx, &r, files)
	if err == nil {
		err = sandpit.AdmitOf(ctx)(r.Size)
	}
	if err == nil {
		err = s.stopped.ExplainFull(s.archived.writeFile(l.id, filepath.Base(s.archived.path(l.id)), r))
	}
	if err != nil {
		undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		_ = s.removeArchive(undoCtx, l.id) // the next archiving tries again, and so does the removal
		return err
	}
	// From here on the archive is enough; it counts once the stopped state is removed.
	return errors.Join(
		os.Remove(filepath.Join(s.archived.dir, name+asideSuffix)), s.stopped.Remove(string(l.id)), s.checkpoints.Remove(string(l.id)))
}

// lockForArchive is lock for what needs the archive.
//
// Unsupported: no archive is configured.
func (s *savedStates) lockForArchive(ctx context.Context, id sandpit.ID) (*os.File, error) {
	if !s.canStop() || s.archive == nil {
		return nil, sandpit.Errorf(sandpit.Unsupported, "no archive is configured")
	}
	return s.lock(ctx, id)
}

// upload writes the files to the archive, and sets the size and sum of the object.
func (s *savedStates) upload(ctx context.Context, r *archiveRecord, files layerFiles) error {
	from, to := io.Pipe()
	sum := sha256.New()
	count := &byteCounter{}
	packed := make(chan error, 1)
	go func() {
		err := packLayer(io.MultiWriter(to, sum, count), r.State, files)
		_ = to.CloseWithError(err) // never fails
		packed <- err
	}()
	err := s.archive.Put(ctx, r.Key, from)
	_ = from.CloseWithError(errors.Join(errors.New("the upload has ended"), err)) // which ends the packing
	packErr := <-packed
	if err != nil {
		return err
	}
	r.Size, r.Sum = count.n, hex.EncodeToString(sum.Sum(nil))
	return packErr
}

// byteCounter counts what is written.
type byteCounter struct{ n int64 }

// Write implements io.Writer.
func (c *byteCounter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// removeArchive removes all objects of a sandbox from the archive, leftovers included. The
// caller has the sandbox's lock.
func (s *savedStates) removeArchive(ctx context.Context, id sandpit.ID) error {
	files, err := s.archived.objectFiles(id)
	if err != nil || len(files) == 0 {
		return err
	}
	if s.archive == nil {
		return sandpit.Errorf(sandpit.Unsupported, "sandbox %s is in an archive, and no archive is configured", id)
	}
	for _, file := range files {
		var r archiveRecord
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			return fmt.Errorf("remove the archive of sandbox %s: %w", id, err)
		}
		if err := s.archive.Remove(ctx, r.Key); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return savedstate.SyncDir(s.archived.dir)
}

// Restore implements sandpit.Archiver.
//
// Unsupported: the Provider has no archive. Unavailable: the archive cannot be reached.
// Exhausted: the disk is full. Internal: the archive is damaged.
func (i *Instance) Restore(ctx context.Context) error {
	if err := i.lifecycle.restore(ctx); err != nil {
		return fmt.Errorf("restore sandbox %s: %w", i.id, err)
	}
	return nil
}

func (l *lifecycle) restore(ctx context.Context) error {
	s := l.states
	lock, err := s.lockForArchive(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = l.provider.locateSandbox(ctx, l.id)
	if err == nil || s.stopped.Has(string(l.id)) {
		return sandpit.Errorf(sandpit.Conflict, "it is not archived")
	}
	if !s.archived.has(l.id) {
		return err
	}
	r, err := s.archived.read(l.id)
	if err != nil {
		return err
	}
	if err := sandpit.AdmitOf(ctx)(r.State.bytes()); err != nil {
		return err
	}
	draft, err := s.stopped.Begin(string(l.id))
	if err != nil {
		return err
	}
	defer draft.Discard()
	if err := s.download(ctx, r, draft); err != nil {
		return s.stopped.ExplainFull(err)
	}
	if _, err := draft.Write(func(map[string]int64) layerState { return r.State }); err != nil {
		return err
	}
	if err := draft.Publish(); err != nil {
		return err
	}
	// From here on it is stopped. Its archive is removed now, or when it is archived again or
	// destroyed.
	_ = s.removeArchive(ctx, l.id)
	return nil
}

// download writes the files of an archived sandbox to a draft.
func (s *savedStates) download(ctx context.Context, r archiveRecord, draft *savedstate.Draft[layerState]) error {
	from, err := s.archive.Get(ctx, r.Key)
	if err != nil {
		return err
	}
	defer from.Close()
	sum := sha256.New()
	// However large the object is now, no more is read than was written.
	body := io.TeeReader(io.LimitReader(from, r.Size), sum)
	if err := unpackLayer(draft.Create, body, r.State.Sizes); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != r.Sum {
		return sandpit.Errorf(sandpit.Internal, "object %s in the archive is damaged: its sum is %.16s, want %.16s", r.Key, got, r.Sum)
	}
	return nil
}
