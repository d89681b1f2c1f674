package commandlog

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small are limits that are soon reached.
func small() Limits {
	return Limits{LogMemory: 2 * SegmentSize, Memory: 8 * SegmentSize, LogDisk: 4 * SegmentSize, Disk: 10 * SegmentSize}
}

func newStore(t *testing.T, limits Limits) *Store {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return newStoreOn(t, limits, func() (*os.File, error) { return Nameless(dir, "journal") }, dir)
}

func newStoreOn(t *testing.T, limits Limits, create func() (*os.File, error), dir *os.Root) *Store {
	t.Helper()
	s := NewStore(limits, create)
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Errorf("close: %v", err)
		}
		if dir != nil {
			if list, err := os.ReadDir(dir.Name()); err != nil || len(list) > 0 {
				t.Errorf("left in the directory: %v, %v", list, err)
			}
			_ = dir.Close()
		}
	})
	return s
}

// truth is what was appended to a log, and in which order.
type truth struct {
	data  [streams][]byte
	order []byte // the stream of each byte
}

func (m *truth) append(l *Log, stream Stream, data []byte) {
	l.Append(stream, data)
	m.data[stream] = append(m.data[stream], data...)
	m.order = append(m.order, bytes.Repeat([]byte{byte(stream)}, len(data))...)
}

// orderFrom returns the streams of the bytes behind a place.
func (m *truth) orderFrom(from Offsets) (order []byte) {
	var at Offsets
	for _, stream := range m.order {
		if at[stream]++; at[stream] > from[stream] {
			order = append(order, stream)
		}
	}
	return order
}

// check reads a log from a place on and compares with the truth. It returns how much
// was missing.
func (m *truth) check(t *testing.T, l *Log, from Offsets) (missing Offsets) {
	t.Helper()
	r, err := l.Reader(from)
	if err != nil {
		t.Fatalf("reader from %v: %v", from, err)
	}
	next, order := from, []byte(nil)
	for p, ok := r.Next(); ok; p, ok = r.Next() {
		if p.Offset != next[p.Stream] {
			t.Fatalf("stream %d continues at %d, want %d", p.Stream, p.Offset, next[p.Stream])
		}
		if p.Missing > 0 {
			missing[p.Stream] += p.Missing
			next[p.Stream] += p.Missing
			continue
		}
		want := m.data[p.Stream][p.Offset:][:len(p.Data)]
		if len(p.Data) == 0 || len(p.Data) > maxPiece || !bytes.Equal(p.Data, want) {
			t.Fatalf("%d bytes of stream %d at %d are others", len(p.Data), p.Stream, p.Offset)
		}
		next[p.Stream] += int64(len(p.Data))
		order = append(order, bytes.Repeat([]byte{byte(p.Stream)}, len(p.Data))...)
	}
	size, _ := l.Amounts()
	if next != size || size != (Offsets{int64(len(m.data[0])), int64(len(m.data[1]))}) {
		t.Fatalf("it ends at %v; the log has %v", next, size)
	}
	if missing == (Offsets{}) {
		if want := m.orderFrom(from); !bytes.Equal(order, want) {
			t.Fatalf("the order from %v on is another", from)
		}
	}
	return missing
}

func some(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(rng.Uint32()), byte(rng.Uint32())}).Read(b) // never fails
	return b
}

// TestWalks appends to several logs at random and reads them from random places.
func TestWalks(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			s := newStore(t, small())
			logs, truths := make([]*Log, 6), make([]truth, 6)
			for i := range logs {
				logs[i] = s.NewLog()
			}
			sizes := []int{1, 2, 30, 700, 32 << 10}
			for range 400 {
				i := rng.IntN(len(logs))
				if rng.IntN(100) == 0 {
					logs[i].End()
					continue
				}
				if logs[i].isEnded() {
					continue
				}
				truths[i].append(logs[i], Stream(rng.IntN(2)), some(rng, 1+rng.IntN(sizes[rng.IntN(len(sizes))])))
				if s.memory > s.limits.Memory+SegmentSize || s.slots.inUse > 10 {
					t.Fatalf("%d bytes in memory, %d slots", s.memory, s.slots.inUse)
				}
			}
			for i, l := range logs {
				size, dropped := l.Amounts()
				if missing := truths[i].check(t, l, Offsets{}); missing != dropped {
					t.Errorf("log %d: %v is missing, told is %v", i, missing, dropped)
				}
				for range 10 {
					truths[i].check(t, l, Offsets{rng.Int64N(size[0] + 1), rng.Int64N(size[1] + 1)})
				}
				if _, err := l.Reader(Offsets{size[0] + 1, 0}); !errors.Is(err, ErrAhead) {
					t.Errorf("a reader beyond the end: %v", err)
				}
				l.End()
				l.Discard()
			}
			if s.memory != 0 || s.slots.inUse != 0 || len(s.running)+len(s.ended) != 0 {
				t.Errorf("left: %d bytes in memory, %d slots", s.memory, s.slots.inUse)
			}
		})
	}
}

func (l *Log) isEnded() bool {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	return l.ended
}

// TestFollow reads while others append, in pieces that come at any moment: each byte
// comes once.
func TestFollow(t *testing.T) {
	t.Parallel()
	s := newStore(t, DefaultLimits())
	l := s.NewLog()
	rng := rand.New(rand.NewPCG(7, 7))
	data := some(rng, 3<<20)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer l.End()
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(5000))
			l.Append(Stream(rng.IntN(2)), rest[:n])
			rest = rest[n:]
		}
	})
	var reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			r, err := l.Reader(Offsets{})
			if err != nil {
				t.Error(err)
				return
			}
			var got []byte
			for {
				changed, over := l.Changed(), l.isEnded()
				for p, ok := r.Next(); ok; p, ok = r.Next() {
					if p.Missing > 0 {
						t.Errorf("%d bytes are missing", p.Missing)
					}
					got = append(got, p.Data...)
				}
				if over {
					break
				}
				<-changed
			}
			if !bytes.Equal(got, data) {
				t.Errorf("got %d bytes, want %d, or others", len(got), len(data))
			}
		})
	}
	writing.Wait()
	reading.Wait()
}

// TestFull keeps what fits into memory when nothing can be written.
func TestFull(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func() (*os.File, error){
		"no space": func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_RDWR, 0) },
		"no file":  func() (*os.File, error) { return nil, os.ErrPermission },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStoreOn(t, small(), create, nil)
			l := s.NewLog()
			var m truth
			for i := range 100 {
				m.append(l, Stream(i%2), bytes.Repeat([]byte{byte(i)}, 10_000))
			}
			missing := m.check(t, l, Offsets{})
			if kept := 1_000_000 - missing[0] - missing[1]; kept < SegmentSize || kept > 3*SegmentSize {
				t.Errorf("%d bytes are kept", kept)
			}
			if s.slots.inUse != 0 {
				t.Errorf("%d slots in use", s.slots.inUse)
			}
		})
	}
}

// TestChangedFile changes what lies in the file: it counts as missing, and nothing
// else is reported instead.
func TestChangedFile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*os.File) error{
		"one byte":  func(f *os.File) error { _, err := f.WriteAt([]byte("x"), SegmentSize+17); return err },
		"a record":  func(f *os.File) error { _, err := f.WriteAt([]byte{1, 0xff, 0xff}, SegmentSize); return err },
		"truncated": func(f *os.File) error { return f.Truncate(SegmentSize) },
		"closed":    func(f *os.File) error { return f.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var file *os.File
			s := newStoreOn(t, small(), func() (f *os.File, err error) {
				file, err = os.CreateTemp(t.TempDir(), "")
				return file, err
			}, nil)
			l := s.NewLog()
			var m truth
			rng := rand.New(rand.NewPCG(1, 1))
			for range 30 {
				m.append(l, Stdout, some(rng, 10_000))
			}
			if missing := m.check(t, l, Offsets{}); missing != (Offsets{}) {
				t.Fatalf("missing before: %v", missing)
			}
			if err := change(file); err != nil {
				t.Fatal(err)
			}
			missing := m.check(t, l, Offsets{})
			if _, told := l.Amounts(); missing[Stdout] < SegmentSize-2*headerSize || missing != told {
				t.Errorf("missing: %v, told %v", missing, told)
			}
			m.append(l, Stderr, []byte("it continues"))
			m.check(t, l, Offsets{})
		})
	}
}

// TestOldestGoesFirst fills the file with logs that have ended.
func TestOldestGoesFirst(t *testing.T) {
	t.Parallel()
	s := newStore(t, small())
	rng := rand.New(rand.NewPCG(1, 2))
	logs, truths := make([]*Log, 5), make([]truth, 5)
	for i := range logs {
		logs[i] = s.NewLog()
		for range 18 { // fills what one may have: 6 segments
			truths[i].append(logs[i], Stdout, some(rng, 20_000))
		}
		logs[i].End()
	}
	last := int64(0)
	for i := range logs {
		age := len(logs) - 1 - i
		missing := truths[age].check(t, logs[age], Offsets{})[Stdout]
		if missing < last {
			t.Errorf("of log %d %d bytes are missing, of the next %d", age, missing, last)
		}
		last = missing
	}
	if missing := truths[4].check(t, logs[4], Offsets{}); missing[Stdout] != 0 {
		t.Errorf("of the last %d bytes are missing", missing[Stdout])
	}
	if last < 3*SegmentSize { // the rest may be in memory still
		t.Errorf("of the first %d bytes are missing", last)
	}
}

// TestReaderLeftBehind drops what a reader has not read yet, and the rest after that.
func TestReaderLeftBehind(t *testing.T) {
	t.Parallel()
	s := newStore(t, small())
	l := s.NewLog()
	var m truth
	rng := rand.New(rand.NewPCG(3, 2))
	m.append(l, Stdout, some(rng, 40_000))
	r, err := l.Reader(Offsets{})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := r.Next()
	at := int64(len(p.Data))
	for range 100 {
		m.append(l, Stdout, some(rng, 20_000))
	}
	p, ok := r.Next()
	if !ok || p.Missing == 0 || p.Offset != at {
		t.Fatalf("got %+v, want what is missing from %d on", p, at)
	}
	at += p.Missing
	p, _ = r.Next()
	if want := m.data[0][at:][:len(p.Data)]; p.Offset != at || !bytes.Equal(p.Data, want) {
		t.Fatalf("it continues at %d, want %d", p.Offset, at)
	}
	at += int64(len(p.Data))
	l.End()
	l.Discard()
	var rest int64
	for p, ok := r.Next(); ok; p, ok = r.Next() {
		rest += p.Missing + int64(len(p.Data))
	}
	if want := int64(len(m.data[0])) - at; rest != want {
		t.Errorf("%d bytes come after that, want %d", rest, want)
	}
}

// TestMemory appends much and watches the heap.
func TestMemory(t *testing.T) {
	s := newStore(t, Limits{LogMemory: 256 << 10, Memory: 1 << 20, LogDisk: 1 << 20, Disk: 4 << 20})
	var logs []*Log
	for range 200 {
		logs = append(logs, s.NewLog())
	}
	block := make([]byte, 32<<10)
	before := heap()
	for range 20 {
		for _, l := range logs {
			l.Append(Stdout, block)
			l.Append(Stderr, block[:1])
		}
	}
	for range 2000 {
		logs[0].Append(Stdout, block)
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	info, err := s.file.Stat()
	if err != nil || info.Size() > 4<<20 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	runtime.KeepAlive(logs)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// FuzzRecord reads random segments.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{0, 0, 1, 'x', 1, 0, 2, 'y', 'z'}, uint16(0), uint16(1))
	f.Add([]byte{0, 0, 0}, uint16(0), uint16(0))
	f.Add([]byte{7, 0xff, 0xff, 1}, uint16(9), uint16(9))
	f.Add([]byte{1, 0xff, 0xff, 1}, uint16(0), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, out, errs uint16) {
		from := Offsets{int64(out), int64(errs)}
		r := &Reader{next: from}
		var total int
		for p, ok := r.nextPiece(b, true); ok; p, ok = r.nextPiece(b, true) {
			if len(p.Data) == 0 || p.Stream >= streams || p.Offset < from[p.Stream] || p.Offset+int64(len(p.Data)) != r.next[p.Stream] {
				t.Fatalf("got %+v", p)
			}
			total += len(p.Data)
		}
		if total > len(b) {
			t.Errorf("%d bytes out of %d", total, len(b))
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{20, 32 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			dir, err := os.OpenRoot(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer dir.Close()
			s := NewStore(DefaultLimits(), func() (*os.File, error) { return Nameless(dir, "journal") })
			defer s.Close()
			l := s.NewLog()
			data := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				l.Append(Stdout, data)
			}
		})
	}
}
