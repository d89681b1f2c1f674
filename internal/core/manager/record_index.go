package manager

import (
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// recordIndex finds boxes. It is guarded by its own lock.
type recordIndex struct {
	mu    sync.Mutex
	byID  map[sandpit.ID]*sandboxRecord
	byKey map[requestKey]*sandboxRecord
}

// requestKey is the idempotency key of an owner's request.
type requestKey struct{ owner, key string }

func newIndex() *recordIndex {
	return &recordIndex{byID: make(map[sandpit.ID]*sandboxRecord), byKey: make(map[requestKey]*sandboxRecord)}
}

func keyOf(r store.Row) requestKey { return requestKey{r.Lease.Owner, r.Key} }

// add puts a box in, unless its key is taken: then it returns who has it.
func (x *recordIndex) add(rec *sandboxRecord) (taken *sandboxRecord) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := keyOf(rec.row); k.key != "" {
		if other := x.byKey[k]; other != nil {
			return other
		}
		x.byKey[k] = rec
	}
	x.byID[rec.id] = rec
	return nil
}

// reserveKey gives the key of a request to a box that is in already, and reports false
// if it is taken. No key is no matter.
func (x *recordIndex) reserveKey(rec *sandboxRecord, r CreateRequest) bool {
	if r.Key == "" {
		return true
	}
	rec.setRequestKey(r.Key, r.computeDigest()) // who finds it compares
	x.mu.Lock()
	k := requestKey{r.Owner, r.Key}
	taken := x.byKey[k] != nil
	if !taken {
		x.byKey[k] = rec
	}
	x.mu.Unlock()
	if taken {
		rec.setRequestKey("", "")
	}
	return !taken
}

// releaseKey undoes reserveKey.
func (x *recordIndex) releaseKey(rec *sandboxRecord, r CreateRequest) {
	x.freeKey(rec, requestKey{r.Owner, r.Key})
	rec.setRequestKey("", "")
}

// freeKey lets the key of a row be used again.
func (x *recordIndex) freeKey(rec *sandboxRecord, k requestKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byKey[k] == rec {
		delete(x.byKey, k)
	}
}

func (x *recordIndex) remove(rec *sandboxRecord) {
	k := keyOf(rec.currentRow())
	x.freeKey(rec, k)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, rec.id)
}

// findVisible is find for callers: what waits in a pool is not theirs to find.
func (x *recordIndex) findVisible(id sandpit.ID) (*sandboxRecord, error) {
	rec, err := x.find(id)
	if err == nil && rec.currentRow().Pool != "" {
		return nil, newNotFoundError(id)
	}
	return rec, err
}

func (x *recordIndex) find(id sandpit.ID) (*sandboxRecord, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if rec := x.byID[id]; rec != nil {
		return rec, nil
	}
	return nil, newNotFoundError(id)
}

// all returns the boxes in the order of their IDs.
func (x *recordIndex) all() []*sandboxRecord {
	x.mu.Lock()
	list := make([]*sandboxRecord, 0, len(x.byID))
	for _, rec := range x.byID {
		list = append(list, rec)
	}
	x.mu.Unlock()
	slices.SortFunc(list, func(a, rec *sandboxRecord) int { return compareIDs(a.id, rec.id) })
	return list
}
