package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// nameRecord is the record of a name in the cache.
type nameRecord struct {
	Name   string `json:"name"`
	Owner  string `json:"owner,omitempty"` // the owner of the name; "" if it is shared
	Key    string `json:"key"`
	Digest string `json:"digest,omitempty"` // of the registry's image under the name; "" if it was imported
}

// nameTable are the records of names in a cache.
type nameTable struct{ cache *cacheDir }

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

// lookUp returns the record of a name, with a key if its image exists.
func (n *nameTable) lookUp(owner string, r reference) (nameRecord, error) {
	var p nameRecord
	if err := n.cache.readRecord(nameFile(owner, r), &p); err != nil || p.Name != r.String() || p.Owner != owner || !isKey(p.Key) {
		return nameRecord{}, err
	}
	key, err := n.cache.existingKey(p.Key)
	p.Key = key
	return p, err
}

// isImported reports whether the name was set by an import and not by a registry.
func (p nameRecord) isImported(r reference) bool {
	return p.Name != "" && p.Digest == "" && r.template == ""
}

// isBuildName reports whether a name is that of a server's build.
func isBuildName(r reference) bool { return sandpit.BuildID(r.template).Validate() == nil }

// maxOwnNames is the limit for one owner's names; above it the oldest is removed.
const maxOwnNames = 200

// isKey reports whether text can be the key of an image: keys become file names.
func isKey(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// write completes a record file that lockNew has returned.
func (n *nameTable) write(f *os.File, name string, p nameRecord) error {
	if err := json.NewEncoder(f).Encode(p); err != nil {
		return n.cache.hintDiskFull(errors.Join(fmt.Errorf("write to the image cache: %w", err), os.Remove(f.Name())))
	}
	return n.cache.publishFile(f, name)
}

// list returns the records of names, by image.
func (n *nameTable) list() (map[string][]nameRecord, error) {
	files, err := n.cache.listFiles(nameSuffix)
	if err != nil {
		return nil, err
	}
	names := map[string][]nameRecord{}
	for _, file := range files {
		var p nameRecord
		if err := n.cache.readRecord(file, &p); err != nil {
			return nil, err
		}
		r, err := parseReference(p.Name)
		if err == nil && nameFile(p.Owner, r) == file && isKey(p.Key) {
			names[p.Key] = append(names[p.Key], p)
		}
	}
	return names, nil
}

// removeShared removes a shared name whose image no longer exists. It returns false if there
// is no such name.
func (n *nameTable) removeShared(ctx context.Context, text string) (bool, error) {
	r, err := parseReference(text)
	if err != nil {
		return false, nil //nolint:nilerr // an invalid name has no record
	}
	have, err := n.lookUp(shared, r)
	if err != nil || have.Name == "" {
		return false, err
	}
	return true, n.remove(ctx, func(p nameRecord) bool { return p.Owner == shared && p.Name == have.Name })
}

// remove removes the names that drop selects, except those that are being written.
func (n *nameTable) remove(ctx context.Context, drop func(nameRecord) bool) error {
	files, err := n.cache.listFiles(nameSuffix)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, n.cache.removeRecord(ctx, file, func() (bool, error) {
			var p nameRecord
			err := n.cache.readRecord(file, &p)
			return drop(p), err
		}))
	}
	return errors.Join(errs...)
}

// set records the meaning of a shared name.
func (n *nameTable) set(ctx context.Context, r reference, p nameRecord) error {
	f, err := n.cache.lockNew(ctx, nameFile(shared, r))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // releases the lock; the file was synced
	return n.write(f, nameFile(shared, r), p)
}
