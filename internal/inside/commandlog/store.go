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

// SegmentSize is how many bytes of records a segment has at most.
const SegmentSize = 64 << 10

// Limits bound a Store. All are in bytes of records; a record has 3 bytes besides
// its data.
type Limits struct {
	// LogMemory is how much of one log is kept in memory, at least a segment.
	LogMemory int64
	// Memory is the same of all logs together, give or take a segment.
	Memory int64
	// LogDisk is how much of one log is kept in the file.
	LogDisk int64
	// Disk is the same of all logs together. It is less where the file system is
	// small: see diskShare.
	Disk int64
}

// DefaultLimits are what a sandbox is meant to bear without noticing.
func DefaultLimits() Limits {
	return Limits{LogMemory: 256 << 10, Memory: 16 << 20, LogDisk: 64 << 20, Disk: 1 << 30}
}

// diskShare is what part of a file system the file may take.
const diskShare = 8

// Store is the room that logs share.
type Store struct {
	limits Limits
	create func() (*os.File, error)
	seed   maphash.Seed

	mu      sync.Mutex
	memory  int64 // of all buffers that hold records
	running []*Log
	ended   []*Log // oldest first
	spare   []byte // a buffer of a whole segment that is used again
	slots   slots
	file    *os.File // nil until it is needed
}

// NewStore returns a Store whose file is made by create when it is needed first:
// it must have no name any more, and belongs to the Store from then on.
func NewStore(limits Limits, create func() (*os.File, error)) *Store {
	return &Store{limits: limits, create: create, seed: maphash.MakeSeed()}
}

// Close gives the file back. Nobody may use a log any more.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// slots are the places for one segment each in the file.
type slots struct {
	used   []bool
	inUse  int
	lowest int // none below is free
	limit  int // how many there may be
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

// releaseSlot frees a slot, and reports whether it was the last one.
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

// openFile makes sure that there is a file.
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
	// A file system that does not say how large it is has no limit.
	if size := fs.Blocks * uint64(max(fs.Bsize, 0)); size > 0 && size < math.MaxInt64 {
		s.limits.Disk = min(s.limits.Disk, int64(size/diskShare))
		s.limits.LogDisk = min(s.limits.LogDisk, s.limits.Disk)
	}
	s.slots.limit = int(s.limits.Disk / SegmentSize)
	s.file = f
	return nil
}

// freeSlot returns a slot that holds nothing, for l, or noSlot.
func (s *Store) freeSlot(l *Log) int {
	if err := s.openFile(); err != nil || l.onDisk >= int(s.limits.LogDisk/SegmentSize) {
		return noSlot // without a file there is no room either
	}
	return s.slots.takeSlot()
}

// evictSlot returns the slot of the oldest segment of somebody who has to give way to
// l, or noSlot: l itself, if it has all that one may have; else who ended first;
// else who has the most.
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
	if victim != l { // of l, somebody counts the segments just now
		victim.removeLost()
	}
	return slot
}

// releaseSlot frees a slot and gives room at the end of the file back.
func (s *Store) releaseSlot(slot int) {
	if s.slots.releaseSlot(slot) {
		_ = s.file.Truncate(int64(len(s.slots.used)) * SegmentSize) // else it stays a little larger
	}
}

// limitMemory brings the memory of all logs below its limit: who ended first is moved
// to the file first, and of those that go on who has the most.
func (s *Store) limitMemory() {
	if s.memory <= s.limits.Memory {
		return
	}
	goal := s.limits.Memory / 4 * 3 // so that it is not looked for victims each time
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

// newBuffer returns an empty buffer for at least n bytes; grown says that there were
// many before it.
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

// recycleBuffer takes a buffer that nobody needs.
func (s *Store) recycleBuffer(b []byte) {
	if cap(b) == SegmentSize {
		s.spare = b
	}
}
