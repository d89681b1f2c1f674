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
)

var _ sandpit.Archiver = (*Instance)(nil)

// archived is a directory with a file for each sandbox that was archived. The sandbox is
// archived while that is there and neither a kept directory nor an engine has it: else
// the file, and the object it names, are leftovers. No object is without a file that
// names it.
type archived struct{ dir string }

// archivedRecord is what is known of an archived sandbox. Environment and key are in
// this file, and not in the object.
type archivedRecord struct {
	Kept kept `json:"kept"`
	// Key names the object.
	Key string `json:"key"`
	// Size is in bytes, Sum is SHA-256 of all of them, in hexadecimal.
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
}

const (
	archivedSuffix = ".json"
	leftSuffix     = ".left" // of files that name objects which are, or may be, leftovers
	archiveSuffix  = ".tar.zst"
)

func archivedError(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.Conflict, "sandbox %s is archived", id)
}

func (a archived) path(id sandpit.ID) string { return filepath.Join(a.dir, string(id)+archivedSuffix) }

func (a archived) has(id sandpit.ID) bool {
	if a.dir == "" {
		return false
	}
	_, err := os.Lstat(a.path(id))
	return err == nil
}

// read returns what is known of an archived sandbox. NotFound: it is not archived.
func (a archived) read(id sandpit.ID) (archivedRecord, error) {
	var found archivedRecord
	f, err := os.Open(a.path(id))
	if err != nil {
		return found, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, maxKeptRecord)).Decode(&found)
	if err == nil && (found.Kept.Record.ID != id || found.Kept.Format != keepFormat || found.Key == "") {
		err = errors.New("it is of something else")
	}
	if err != nil {
		return found, sandpit.Errorf(sandpit.Internal, "what is known of the archived sandbox %s cannot be read: %w", id, err)
	}
	return found, nil
}

// write makes a sandbox archived, once nothing else has it any more.
func (a archived) write(id sandpit.ID, r archivedRecord) error {
	return a.writeFile(id, filepath.Base(a.path(id)), r)
}

func (a archived) writeFile(id sandpit.ID, name string, r archivedRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	half, err := os.MkdirTemp(a.dir, string(id)+"-*"+halfSuffix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(half) // what stays is swept the next time
	file := filepath.Join(half, "record")
	if err := writeSynced(file, data); err != nil {
		return err
	}
	if err := os.Rename(file, filepath.Join(a.dir, name)); err != nil {
		return err
	}
	return syncPath(a.dir)
}

// leave makes what is archived of a sandbox a leftover, without asking the archive.
func (a archived) leave(id sandpit.ID) error {
	if !a.has(id) {
		return nil
	}
	left := filepath.Join(a.dir, string(id)+"-"+strings.ToLower(rand.Text())+leftSuffix)
	if err := os.Rename(a.path(id), left); err != nil {
		return err
	}
	return syncPath(a.dir)
}

// files are those that name objects of a sandbox.
func (a archived) files(id sandpit.ID) ([]string, error) {
	list, err := filepath.Glob(filepath.Join(a.dir, string(id)+"-*"+leftSuffix))
	if a.has(id) {
		list = append(list, a.path(id))
	}
	return list, err
}

func (a archived) list() ([]record, error) {
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
		found, err := a.read(id)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // restored meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found.Kept.Record)
	}
	return all, nil
}

// Archive implements sandpit.Archiver. The image goes along, so that the archive is all
// that is needed.
//
// Unsupported: the Provider has no archive. Unavailable: the archive cannot be reached.
func (i *Instance) Archive(ctx context.Context) error {
	if err := i.archive(ctx); err != nil {
		return fmt.Errorf("archive sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) archive(ctx context.Context) error {
	p := i.provider
	held, err := p.holdArchive(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	found, err := p.keep.read(i.id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if _, err := p.locate(ctx, i.id); err != nil {
			return err
		}
		return sandpit.Errorf(sandpit.Conflict, "it is not stopped")
	}
	if err != nil {
		return err
	}
	if err := errors.Join(p.removeArchive(ctx, i.id), i.endLeftover(ctx)); err != nil {
		return err
	}
	files, err := p.keep.open(i.id)
	if err != nil {
		return err
	}
	defer files.close()
	name := string(i.id) + "-" + strings.ToLower(rand.Text())
	r := archivedRecord{Key: name + archiveSuffix}
	if err := p.archived.writeFile(i.id, name+leftSuffix, r); err != nil {
		return p.keep.explain(err)
	}
	r.Kept = found
	err = p.upload(ctx, &r, files)
	if err == nil {
		err = sandpit.AdmitOf(ctx)(r.Size)
	}
	if err == nil {
		err = p.keep.explain(p.archived.write(i.id, r))
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		_ = p.removeArchive(clean, i.id) // it is tried again by the next archiving, and the removal
		return err
	}
	// From here on the archive is enough; when the kept directory is gone, it counts.
	return errors.Join(os.Remove(filepath.Join(p.archived.dir, name+leftSuffix)), p.keep.remove(i.id), p.saved.remove(i.id))
}

// holdArchive takes a sandbox's lock for what needs the archive.
func (p *Provider) holdArchive(ctx context.Context, id sandpit.ID) (*os.File, error) {
	if p.keep.dir == "" || p.cfg.Archive == nil {
		return nil, sandpit.Errorf(sandpit.Unsupported, "there is no archive")
	}
	return p.keep.lock(ctx, id)
}

// upload puts the files into the archive, and completes what is known of them.
func (p *Provider) upload(ctx context.Context, r *archivedRecord, files keptFiles) error {
	from, to := io.Pipe()
	sum := sha256.New()
	count := &tally{}
	packed := make(chan error, 1)
	go func() {
		err := pack(io.MultiWriter(to, sum, count), r.Kept, files)
		_ = to.CloseWithError(err) // never fails
		packed <- err
	}()
	err := p.cfg.Archive.Put(ctx, r.Key, from)
	_ = from.CloseWithError(errors.Join(errors.New("nobody reads any more"), err)) // so that the other side ends
	packErr := <-packed
	if err != nil {
		return err
	}
	r.Size, r.Sum = count.n, hex.EncodeToString(sum.Sum(nil))
	return packErr
}

// tally counts what is written.
type tally struct{ n int64 }

func (c *tally) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// removeArchive removes what is archived of a sandbox, which is a leftover if the sandbox
// is elsewhere. Who calls it has the lock.
func (p *Provider) removeArchive(ctx context.Context, id sandpit.ID) error {
	files, err := p.archived.files(id)
	if err != nil || len(files) == 0 {
		return err
	}
	if p.cfg.Archive == nil {
		return sandpit.Errorf(sandpit.Unsupported, "there is no archive any more in which sandbox %s is", id)
	}
	for _, file := range files {
		var found archivedRecord
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &found)
		}
		if err != nil {
			return fmt.Errorf("remove the archive of sandbox %s: %w", id, err)
		}
		if err := p.cfg.Archive.Remove(ctx, found.Key); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return syncPath(p.archived.dir)
}

// Restore implements sandpit.Archiver.
//
// Unsupported: the Provider has no archive. Unavailable: the archive cannot be reached.
// Exhausted: no room on disk. Internal: what came from the archive is not what went there.
func (i *Instance) Restore(ctx context.Context) error {
	if err := i.restore(ctx); err != nil {
		return fmt.Errorf("restore sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) restore(ctx context.Context) error {
	p := i.provider
	held, err := p.holdArchive(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	_, err = p.locate(ctx, i.id)
	if err == nil || p.keep.has(i.id) {
		return sandpit.Errorf(sandpit.Conflict, "it is not archived")
	}
	if !p.archived.has(i.id) {
		return err
	}
	found, err := p.archived.read(i.id)
	if err != nil {
		return err
	}
	if err := sandpit.AdmitOf(ctx)(found.Kept.bytes()); err != nil {
		return err
	}
	half, err := os.MkdirTemp(p.keep.dir, string(i.id)+"-*"+halfSuffix)
	if err != nil {
		return p.keep.explain(err)
	}
	defer os.RemoveAll(half) // what was not given its name
	if err := p.download(ctx, found, half); err != nil {
		return p.keep.explain(err)
	}
	if _, err := p.keep.name(half, i.id); err != nil {
		return err
	}
	// From here on it is stopped. What the archive has is removed now, or before it is
	// started.
	if err := syncPath(p.keep.dir); err != nil {
		return err
	}
	_ = p.removeArchive(ctx, i.id) // it is tried again by the next archiving, and the removal
	return nil
}

// download unpacks what the archive has of a sandbox into a directory.
func (p *Provider) download(ctx context.Context, r archivedRecord, dir string) error {
	from, err := p.cfg.Archive.Get(ctx, r.Key)
	if err != nil {
		return err
	}
	defer from.Close()
	sum := sha256.New()
	// Whatever it is, no more is read of it than was written.
	body := io.TeeReader(io.LimitReader(from, r.Size), sum)
	if err := unpack(dir, body, r.Kept); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != r.Sum {
		return sandpit.Errorf(sandpit.Internal, "the archive has %s damaged: its sum is %.16s, not %.16s", r.Key, got, r.Sum)
	}
	data, err := json.Marshal(r.Kept)
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(dir, keptRecord), data); err != nil {
		return err
	}
	return syncPath(dir)
}
