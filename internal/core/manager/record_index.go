package manager

import (
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// index finds boxes. It is guarded by its own lock.
type index struct {
	mu    sync.Mutex
	boxes map[sandpit.ID]*box
	keys  map[requestKey]*box
}

// requestKey is the idempotency key of an owner's request.
type requestKey struct{ owner, key string }

func newIndex() *index {
	return &index{boxes: make(map[sandpit.ID]*box), keys: make(map[requestKey]*box)}
}

func keyOf(r store.Row) requestKey { return requestKey{r.Lease.Owner, r.Key} }

// add puts a box in, unless its key is taken: then it returns who has it.
func (x *index) add(b *box) (taken *box) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := keyOf(b.row); k.key != "" {
		if other := x.keys[k]; other != nil {
			return other
		}
		x.keys[k] = b
	}
	x.boxes[b.id] = b
	return nil
}

// takeKey gives the key of a request to a box that is in already, and reports false
// if it is taken. No key is no matter.
func (x *index) takeKey(b *box, r CreateRequest) bool {
	if r.Key == "" {
		return true
	}
	b.identify(r.Key, r.digest()) // who finds it compares
	x.mu.Lock()
	k := requestKey{r.Owner, r.Key}
	taken := x.keys[k] != nil
	if !taken {
		x.keys[k] = b
	}
	x.mu.Unlock()
	if taken {
		b.identify("", "")
	}
	return !taken
}

// returnKey undoes takeKey.
func (x *index) returnKey(b *box, r CreateRequest) {
	x.freeKey(b, requestKey{r.Owner, r.Key})
	b.identify("", "")
}

// freeKey lets the key of a row be used again.
func (x *index) freeKey(b *box, k requestKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.keys[k] == b {
		delete(x.keys, k)
	}
}

func (x *index) drop(b *box) {
	k := keyOf(b.look())
	x.freeKey(b, k)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.boxes, b.id)
}

// known is find for callers: what waits in a pool is not theirs to find.
func (x *index) known(id sandpit.ID) (*box, error) {
	b, err := x.find(id)
	if err == nil && b.look().Pool != "" {
		return nil, notFound(id)
	}
	return b, err
}

func (x *index) find(id sandpit.ID) (*box, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.boxes[id]; b != nil {
		return b, nil
	}
	return nil, notFound(id)
}

// all returns the boxes in the order of their IDs.
func (x *index) all() []*box {
	x.mu.Lock()
	list := make([]*box, 0, len(x.boxes))
	for _, b := range x.boxes {
		list = append(list, b)
	}
	x.mu.Unlock()
	slices.SortFunc(list, func(a, b *box) int { return compareIDs(a.id, b.id) })
	return list
}
