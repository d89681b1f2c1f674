package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// nameRecord is what is remembered of a name.
type nameRecord struct {
	Name   string `json:"name"`
	Owner  string `json:"owner,omitempty"` // whose name it is; "" if it is shared
	Key    string `json:"key"`
	Digest string `json:"digest,omitempty"` // that the registry had under the name; "" if it was imported
}

const nameSuffix = ".name"

// nameFile returns the file of the record of a name, which is shared or an owner's.
func nameFile(owner string, r reference) string {
	if owner == shared {
		return cacheKey("name", r.String()) + nameSuffix
	}
	return ownPrefix(owner) + cacheKey("name", r.String(), "of", owner) + nameSuffix
}

// ownPrefix begins the records of an owner's names, so that they can be counted.
func ownPrefix(owner string) string { return cacheKey("owner", owner)[:16] + "." }

// lookUpRecord returns what is remembered of a name, with a key if its image is there.
func (s *Store) lookUpRecord(owner string, r reference) (nameRecord, error) {
	var p nameRecord
	if err := s.readRecord(nameFile(owner, r), &p); err != nil || p.Name != r.String() || p.Owner != owner || !isKey(p.Key) {
		return nameRecord{}, err
	}
	key, err := s.existingKey(p.Key)
	p.Key = key
	return p, err
}

// openRegistry returns the image of a name: that of the cache, or what the
// registry has.
func (s *Store) openRegistry(ctx context.Context, text string, p Progress) (*os.File, error) {
	r, err := parseReference(text)
	if err != nil {
		return nil, hintPath(err, text)
	}
	f, err := s.openNamed(ctx, shared, r, s.o.Pull, p)
	return f, hintPath(err, text)
}

// hintPath tells of a file that may be meant.
func hintPath(err error, text string) error {
	if code := sandpit.CodeOf(err); err == nil || code == sandpit.Canceled {
		return err
	}
	if _, statErr := os.Lstat(text); statErr == nil {
		return sandpit.WithHint(err, "for the file or directory of that name write ./"+text)
	}
	return err
}

// openNamed returns the image that a name means to an owner.
func (s *Store) openNamed(ctx context.Context, owner string, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	for range 5 {
		have, err := s.lookUpName(owner, r, policy)
		if err != nil {
			return nil, err
		}
		if have.Key != "" {
			if f, err := s.openImage(ctx, have.Key); err != nil || f != nil {
				return f, err
			}
		}
		if r.template != "" {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no such template"), s.templateHint(r.template))
		}
		if policy == PullNever {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "not in the cache, and image.pull is never: pulling is disabled"),
				"set image.pull to missing, or: sandpit image import FILE --name "+r.shortName())
		}
		if policy == pullOffline {
			return nil, sandpit.Errorf(sandpit.NotFound, "the image is no longer in the cache")
		}
		f, err := s.pullNamed(ctx, owner, r, policy, p)
		if err != nil || f != nil {
			return f, err
		}
	}
	return nil, sandpit.Errorf(sandpit.Unavailable, "somebody keeps removing the image from the cache")
}

// templateHint says how there can be a template of a name.
func (s *Store) templateHint(name string) string {
	if slices.Contains(s.o.Builtins, name) {
		return "build it: sandpit template build builtin:" + name
	}
	return "sandpit template ls; or build it: sandpit template build -t " + name
}

// lookUpName returns what a name means to an owner, without a key if a registry has to be
// asked. A shared name comes before the owner's own, so that the administrator's cache
// means the same to all owners.
//
// NotFound: it is the name of an imported image that is gone. The registry's image of that
// name does not replace it, because its publisher would run code here under a name that the
// administrator chose.
func (s *Store) lookUpName(owner string, r reference, policy PullPolicy) (nameRecord, error) {
	have, err := s.lookUpRecord(shared, r)
	if err != nil {
		return nameRecord{}, err
	}
	if owner != shared && isBuildName(r) {
		return nameRecord{}, nil // builds have owners, and the manager knows them
	}
	if have.isImported(r) {
		if have.Key == "" {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the image was imported, and is no longer in the cache"),
				"import it again, or remove the name to use its registry: sandpit image rm "+r.shortName())
		}
		return have, err
	}
	if policy == PullAlways && r.digest == "" && r.template == "" {
		return nameRecord{}, nil
	}
	if have.Key != "" || owner == shared {
		return have, nil
	}
	return s.lookUpRecord(owner, r)
}

// isImported reports whether a name was given to an image that no registry has.
func (p nameRecord) isImported(r reference) bool {
	return p.Name != "" && p.Digest == "" && r.template == ""
}

// isBuildName reports whether a name is that of a server's build.
func isBuildName(r reference) bool { return sandpit.BuildID(r.template).Validate() == nil }

// pullNamed fetches the image of a name for an owner and remembers it. Concurrent calls for
// the same name of the same owner fetch it once.
func (s *Store) pullNamed(ctx context.Context, owner string, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	file := nameFile(owner, r)
	before, err := s.recordTime(file)
	if err != nil {
		return nil, err
	}
	record, err := s.lockNew(ctx, file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = record.Close() }() // gives up the lock; the file was synced
	drop := func(err error) error {
		if removeErr := os.Remove(record.Name()); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
		}
		return err
	}
	after, err := s.recordTime(file)
	if err != nil {
		return nil, drop(err)
	}
	if have, err := s.lookUpRecord(owner, r); err != nil || have.Key != "" && (policy != PullAlways || !after.Equal(before)) {
		if err != nil {
			return nil, drop(err)
		}
		f, err := s.openImage(ctx, have.Key)
		return f, drop(err)
	}
	f, key, digest, err := s.pullImage(ctx, owner, r, p)
	if err != nil {
		return nil, drop(err)
	}
	if owner != shared {
		s.limitRecords(ownPrefix(owner), nameSuffix, maxOwnNames)
	}
	if err := s.writeName(record, file, nameRecord{Name: r.String(), Owner: owner, Key: key, Digest: digest}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// maxOwnNames is how many names an owner has at most; the oldest is forgotten for another.
const maxOwnNames = 200

// limitRecords removes the oldest records with a prefix and suffix until there are fewer
// than most. A record that cannot be removed stays, which does no harm.
func (s *Store) limitRecords(prefix, suffix string, most int) {
	files, err := s.listFiles(suffix)
	if err != nil {
		return
	}
	files = slices.DeleteFunc(files, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	for ; len(files) >= most; files = files[1:] {
		slices.SortFunc(files, func(a, b string) int {
			x, _ := s.recordTime(a)
			y, _ := s.recordTime(b)
			return x.Compare(y)
		})
		_ = os.Remove(filepath.Join(s.dir, files[0]))
	}
}

// isKey reports whether text can be the key of an image: keys become file names.
func isKey(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// recordTime is when a record was written, or the zero time.
func (s *Store) recordTime(name string) (time.Time, error) {
	info, err := os.Lstat(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look into the image cache: %w", err)
	}
	return info.ModTime(), nil
}

// writeName finishes a record that was acquired.
func (s *Store) writeName(f *os.File, name string, p nameRecord) error {
	if err := json.NewEncoder(f).Encode(p); err != nil {
		return s.hintDiskFull(errors.Join(fmt.Errorf("write to the image cache: %w", err), os.Remove(f.Name())))
	}
	return s.publishFile(f, name)
}
