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

// nameRecord is what is remembered of a name.
type nameRecord struct {
	Name   string `json:"name"`
	Owner  string `json:"owner,omitempty"` // whose name it is; "" if it is shared
	Key    string `json:"key"`
	Digest string `json:"digest,omitempty"` // that the registry had under the name; "" if it was imported
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

// lookUpRecord returns what is remembered of a name, with a key if its image is there.
func (n *nameTable) lookUp(owner string, r reference) (nameRecord, error) {
	var p nameRecord
	if err := n.cache.readRecord(nameFile(owner, r), &p); err != nil || p.Name != r.String() || p.Owner != owner || !isKey(p.Key) {
		return nameRecord{}, err
	}
	key, err := n.cache.existingKey(p.Key)
	p.Key = key
	return p, err
}

// isImported reports whether a name was given to an image that no registry has.
func (p nameRecord) isImported(r reference) bool {
	return p.Name != "" && p.Digest == "" && r.template == ""
}

// isBuildName reports whether a name is that of a server's build.
func isBuildName(r reference) bool { return sandpit.BuildID(r.template).Validate() == nil }

// maxOwnNames is how many names an owner has at most; the oldest is forgotten for another.
const maxOwnNames = 200

// isKey reports whether text can be the key of an image: keys become file names.
func isKey(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// writeName finishes a record that was acquired.
func (n *nameTable) write(f *os.File, name string, p nameRecord) error {
	if err := json.NewEncoder(f).Encode(p); err != nil {
		return n.cache.hintDiskFull(errors.Join(fmt.Errorf("write to the image cache: %w", err), os.Remove(f.Name())))
	}
	return n.cache.publishFile(f, name)
}

// listNames returns what is remembered of names, by image.
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

// removeSharedName forgets a shared name whose image is gone. It reports false if there is none.
func (n *nameTable) removeShared(ctx context.Context, text string) (bool, error) {
	r, err := parseReference(text)
	if err != nil {
		return false, nil //nolint:nilerr // what is no name is not there
	}
	have, err := n.lookUp(shared, r)
	if err != nil || have.Name == "" {
		return false, err
	}
	return true, n.remove(ctx, func(p nameRecord) bool { return p.Owner == shared && p.Name == have.Name })
}

// removeNames removes the names that are to be dropped. One that somebody is about to
// renew stays.
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

// setName remembers what a shared name means from now on.
func (n *nameTable) set(ctx context.Context, r reference, p nameRecord) error {
	f, err := n.cache.lockNew(ctx, nameFile(shared, r))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // gives up the lock; the file was synced
	return n.write(f, nameFile(shared, r), p)
}
