package commandlog

import (
	"errors"
	"hash/maphash"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
)

// SegmentSize is the largest size of a segment's records, in bytes.
const SegmentSize = 64 << 10

// Limits bound a Store, in bytes of records. A record has 3 bytes besides its data.
type Limits struct {
	// LogMemory bounds the memory of one log. At least one segment stays in memory.
	LogMemory int64
	// Memory bounds the memory of all logs together, give or take a segment.
	Memory int64
	// LogDisk bounds the part of one log in the file.
	LogDisk int64
	// Disk bounds the file. On a small file system it is reduced: see diskShare.
	Disk int64
}

// DefaultLimits returns the limits for a sandbox.
func DefaultLimits() Limits {
	return Limits{LogMemory: 256 << 10, Memory: 16 << 20, LogDisk: 64 << 20, Disk: 1 << 30}
}

// diskShare is the divisor for the part of a file system that the file may use.
const diskShare = 8

// Store is the space that logs share.
type Store struct {
	limits Limits
	create func() (*os.File, error)
	seed   maphash.Seed

	mu      sync.Mutex
	memory  int64 // size of all buffers with records
	running []*Log
	ended   []*Log // oldest first
	spare   []byte // a buffer of SegmentSize for reuse
	slots   slots
	file    *os.File // nil until first needed
}

// NewStore returns a Store that calls create when it first needs its file. The file must have no name; the Store
// closes it.
func NewStore(limits Limits, create func() (*os.File, error)) *Store {
	return &Store{limits: limits, create: create, seed: maphash.MakeSeed()}
}

// Close closes the file. No log may be used afterwards.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// slots are the parts of the file, with room for one segment each.
type slots struct {
	used   []bool
	inUse  int
	lowest int // no slot below it is free
	limit  int // largest number of slots
}

// noSlot is the slot of a segment that is not in the file.
const noSlot = -1

// takeSlot returns a free slot, or noSlot.
func (p *slots) takeSlot() int {
	for p.lowest < len(p.used) && p.used[p.lowest] {
		p.lowest++
	}
	if p.lowest >= p.limit {
		return noSlot
	}
	if p.lowest == len(p.used) {
		p.used = append(p.used, false)
	}
	p.used[p.lowest] = true
	p.inUse++
	return p.lowest
}

// releaseSlot frees a slot and reports whether it was the last one.
func (p *slots) releaseSlot(slot int) (last bool) {
	p.used[slot] = false
	p.inUse--
	p.lowest = min(p.lowest, slot)
	if slot != len(p.used)-1 {
		return false
	}
	for len(p.used) > 0 && !p.used[len(p.used)-1] {
		p.used = p.used[:len(p.used)-1]
	}
	return true
}

// openFile creates the file if it does not exist yet.
func (s *Store) openFile() error {
	if s.file != nil {
		return nil
	}
	f, err := s.create()
	if err != nil {
		return err
	}
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return errors.Join(err, f.Close())
	}
	// A file system that reports no size has no limit.
	if size := fs.Blocks * uint64(max(fs.Bsize, 0)); size > 0 && size < math.MaxInt64 {
		s.limits.Disk = min(s.limits.Disk, int64(size/diskShare))
		s.limits.LogDisk = min(s.limits.LogDisk, s.limits.Disk)
	}
	s.slots.limit = int(s.limits.Disk / SegmentSize)
	s.file = f
	return nil
}

// freeSlot returns an unused slot for l, or noSlot.
func (s *Store) freeSlot(l *Log) int {
	if err := s.openFile(); err != nil || l.onDisk >= int(s.limits.LogDisk/SegmentSize) {
		return noSlot // without a file there are no slots
	}
	return s.slots.takeSlot()
}

// evictSlot takes the slot of the oldest segment of a log that must make room for l, or returns noSlot. The log is l
// itself if it has reached its own limit, otherwise the log that ended first, otherwise the one with the most
// segments in the file.
func (s *Store) evictSlot(l *Log) int {
	victim := l
	if s.file != nil && l.onDisk < int(s.limits.LogDisk/SegmentSize) {
		if i := slices.IndexFunc(s.ended, func(e *Log) bool { return e.onDisk > 0 }); i >= 0 {
			victim = s.ended[i]
		} else {
			for _, other := range s.running {
				if other.onDisk > victim.onDisk {
					victim = other
				}
			}
		}
	}
	i := slices.IndexFunc(victim.segments, func(g segment) bool { return g.slot != noSlot })
	if i < 0 {
		return noSlot
	}
	slot := victim.detachSlot(i)
	victim.dropSegment(i)
	if victim != l { // the caller iterates over the segments of l
		victim.removeLost()
	}
	return slot
}

// releaseSlot frees a slot and shortens the file if possible.
func (s *Store) releaseSlot(slot int) {
	if s.slots.releaseSlot(slot) {
		_ = s.file.Truncate(int64(len(s.slots.used)) * SegmentSize) // otherwise it stays larger
	}
}

// limitMemory moves logs to the file until all logs together are below the memory limit: first those that ended
// first, then running ones with the most memory.
func (s *Store) limitMemory() {
	if s.memory <= s.limits.Memory {
		return
	}
	goal := s.limits.Memory / 4 * 3 // so that this is not repeated at each append
	for _, l := range s.ended {
		if s.memory <= goal {
			return
		}
		if l.memory > 0 {
			l.spillAll()
		}
	}
	for s.memory > goal && len(s.running) > 0 {
		largest := slices.MaxFunc(s.running, func(a, b *Log) int { return int(a.memory - b.memory) })
		if largest.memory == 0 {
			return
		}
		largest.spillAll()
	}
}

// newBuffer returns an empty buffer for at least n bytes; grown says that more bytes are likely to follow.
func (s *Store) newBuffer(n int, grown bool) []byte {
	if grown && s.spare != nil {
		b := s.spare[:0]
		s.spare = nil
		return b
	}
	const least = 512
	size := least
	for size < n || grown && size < SegmentSize {
		size *= 2
	}
	return make([]byte, 0, size)
}

// recycleBuffer keeps an unused buffer for the next segment.
func (s *Store) recycleBuffer(b []byte) {
	if cap(b) == SegmentSize {
		s.spare = b
	}
}
