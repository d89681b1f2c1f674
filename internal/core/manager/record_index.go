package manager

import (
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// recordIndex finds records. All methods may be called concurrently.
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

// add adds a record, unless its request key is taken: then it returns the record that has it.
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

// reserveKey gives the request's key to a record that is in the index, and reports false if the key
// is taken. A request without a key always succeeds.
func (x *recordIndex) reserveKey(rec *sandboxRecord, r CreateRequest) bool {
	if r.Key == "" {
		return true
	}
	rec.setRequestKey(r.Key, r.computeDigest()) // before other requests can find it by the key
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

// freeKey lets a key be used again, if the record has it.
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

// findVisible is find for callers, which cannot find spares.
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

// all returns the records in the order of their IDs.
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
