package diskspace

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// Options configure a Budget.
type Options struct {
	// Name is the purpose in error messages, for example "pulled images". Required.
	Name string
	// Disk is the file system. Default: no free space is kept.
	Disk *Disk
	// Total bounds all owners together, in bytes. 0: only the disk bounds them.
	Total int64
	// PerOwner bounds one owner, in bytes. 0: only Total bounds it.
	PerOwner int64
	// Held returns the bytes on the disk that count in addition to reservations: those of an owner, and those of all
	// owners. A reservation is released when its data counts here, so nothing is lost at a restart. It is called
	// concurrently, for each reservation. Default: only reservations count.
	Held func(owner string) (own, all int64, err error)
	// Hint is the hint for an owner at its bound. Default: try again later.
	Hint string
}

// Budget bounds how many bytes of a disk are used for one purpose, for each owner and for all. All methods may be
// called concurrently.
type Budget struct {
	o Options

	mu       sync.Mutex
	all      int64
	reserved map[string]int64 // by owner, those with any
}

// NewBudget returns a budget without reservations.
func NewBudget(o Options) *Budget {
	if o.Held == nil {
		o.Held = func(string) (int64, int64, error) { return 0, 0, nil }
	}
	if o.Hint == "" {
		o.Hint = "try again later"
	}
	return &Budget{o: o, reserved: make(map[string]int64)}
}

// Reserve reserves bytes for an owner. The caller releases the reservation.
//
// Exhausted: the owner or all owners together exceed a bound, or the disk has too little free space.
func (b *Budget) Reserve(owner string, bytes int64) (*Reservation, error) {
	return b.growNew(&Reservation{budget: b, owner: owner}, bytes)
}

// ReserveUnshared is Reserve for an administrator: only the total and the disk bound it.
func (b *Budget) ReserveUnshared(owner string, bytes int64) (*Reservation, error) {
	return b.growNew(&Reservation{budget: b, owner: owner, unshared: true}, bytes)
}

func (b *Budget) growNew(r *Reservation, bytes int64) (*Reservation, error) {
	if err := r.Grow(bytes); err != nil {
		return nil, err
	}
	return r, nil
}

// Reserved returns how many bytes are reserved for an owner, and for all owners.
func (b *Budget) Reserved(owner string) (own, all int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserved[owner], b.all
}

// addReserved adds bytes, which may be negative, to an owner's reserved bytes.
func (b *Budget) addReserved(owner string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all += bytes
	b.reserved[owner] += bytes
	if b.reserved[owner] == 0 {
		delete(b.reserved, owner)
	}
}

// maxRequest exceeds any disk, and is small enough that sums do not overflow.
const maxRequest = 1 << 52

// reserveBytes reserves bytes for an owner unless that exceeds a bound. It counts before it compares, so of two
// reservations that do not fit together at least one is refused.
func (b *Budget) reserveBytes(owner string, unshared bool, bytes int64) error {
	if bytes < 0 || bytes > maxRequest {
		return sandpit.Errorf(sandpit.Exhausted, "%d bytes for %s are more than any disk has", bytes, b.o.Name)
	}
	b.addReserved(owner, bytes)
	if err := b.checkBounds(owner, unshared, bytes); err != nil {
		b.addReserved(owner, -bytes)
		return err
	}
	if err := b.o.Disk.reserveBytes(bytes); err != nil {
		b.addReserved(owner, -bytes)
		return err
	}
	return nil
}

// checkBounds reports whether reserved and held bytes exceed a bound.
func (b *Budget) checkBounds(owner string, unshared bool, more int64) error {
	if b.o.Total <= 0 && (unshared || b.o.PerOwner <= 0) {
		return nil
	}
	// Read in this order: bytes that become held meanwhile are counted twice rather than not at all.
	own, all := b.Reserved(owner)
	ownHeld, allHeld, err := b.o.Held(owner)
	if err != nil {
		return err
	}
	own, all = own+ownHeld, all+allHeld
	switch {
	case !unshared && b.o.PerOwner > 0 && own > b.o.PerOwner:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "owner %.100q uses %s of its %s for %s, and %s more are needed",
			owner, formatSize(own-more), formatSize(b.o.PerOwner), b.o.Name, formatSize(more)), b.o.Hint)
	case b.o.Total > 0 && all > b.o.Total:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the %s for %s are in use, and %s more are needed",
			formatSize(b.o.Total), b.o.Name, formatSize(more)), b.o.Hint)
	}
	return nil
}

// Reservation is the disk space of data that an owner will write or has written. Its methods may be called
// concurrently.
type Reservation struct {
	budget   *Budget
	owner    string
	unshared bool

	mu       sync.Mutex
	bytes    int64
	written  int64 // of bytes; included in the disk's figures
	released bool
}

// Grow reserves more bytes.
//
// Exhausted: as Budget.Reserve; the reservation stays unchanged. Canceled: the reservation was released.
func (r *Reservation) Grow(bytes int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.growLocked(bytes)
}

// growLocked is Grow with the lock held.
func (r *Reservation) growLocked(bytes int64) error {
	if r.released {
		return sandpit.Errorf(sandpit.Canceled, "reserve disk space for %s: the reservation was released", r.budget.o.Name)
	}
	if err := r.budget.reserveBytes(r.owner, r.unshared, bytes); err != nil {
		return err
	}
	r.bytes += bytes
	return nil
}

// Bounds of the step by which a reservation grows when more is written than was reserved.
const (
	minStep = 1 << 20
	maxStep = 256 << 20
)

// Write must be called before bytes are written. It reserves more if the rest of the reservation does not suffice, so
// writes of unknown size, such as decompressed data, are bounded too.
//
// Errors are those of Grow; nothing may be written then.
func (r *Reservation) Write(bytes int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if missing := r.written + bytes - r.bytes; missing > 0 {
		// A large step saves work; the missing bytes suffice.
		err := r.growLocked(max(missing, min(max(r.bytes/4, minStep), maxStep)))
		if err != nil {
			err = r.growLocked(missing)
		}
		if err != nil {
			return err
		}
	}
	r.written += bytes
	r.budget.o.Disk.releaseBytes(bytes)
	return nil
}

// Settle sets the reservation to the final size of its data, which is complete on the disk. It releases the rest. A
// size above the reservation is counted without a check, because the data exists.
func (r *Reservation) Settle(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return
	}
	bytes = max(bytes, 0)
	r.budget.addReserved(r.owner, bytes-r.bytes)
	r.budget.o.Disk.releaseBytes(r.bytes - r.written)
	r.bytes, r.written = bytes, bytes
}

// Bytes returns how many bytes are reserved.
func (r *Reservation) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// Release releases the whole reservation: its data was removed, or Options.Held counts it. It is idempotent.
func (r *Reservation) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	r.budget.addReserved(r.owner, -r.bytes)
	r.budget.o.Disk.releaseBytes(r.bytes - r.written)
	r.bytes, r.written = 0, 0
}
