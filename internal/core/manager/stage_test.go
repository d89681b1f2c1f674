package manager_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// stage is a provider whose sandboxes are only played: nothing runs in them, so
// that time can stand still in a bubble of testing/synctest, which real processes
// do not allow. What needs a real guest is tested with provider/fake.
type stage struct {
	mu    sync.Mutex
	boxes map[sandpit.ID]*prop
	slow  time.Duration // what each change takes
	fail  error         // what each change fails with
	tries int           // changes that failed so
	use   func(sandpit.ID) sandpit.Stats
	meter meter
}

// meter measures how much is done at the same time, for the owners that sandboxes have
// as the label "owner".
type meter struct {
	mu      sync.Mutex
	current map[string]int // by kind, and by kind and owner
	highest map[string]int
}

// enter counts something of a kind until leave is called.
func (m *meter) enter(kind string, spec sandpit.Spec) (leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == nil {
		m.current, m.highest = make(map[string]int), make(map[string]int)
	}
	keys := []string{kind, kind + " " + spec.Labels["owner"]}
	for _, k := range keys {
		m.current[k]++
		m.highest[k] = max(m.highest[k], m.current[k])
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, k := range keys {
			m.current[k]--
		}
	}
}

// note remembers the highest of a number.
func (m *meter) note(key string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == nil {
		m.current, m.highest = make(map[string]int), make(map[string]int)
	}
	m.highest[key] = max(m.highest[key], n)
}

// most returns the highest number that there was.
func (m *meter) most(key string) int { m.mu.Lock(); defer m.mu.Unlock(); return m.highest[key] }

func newStage() *stage { return &stage{boxes: make(map[sandpit.ID]*prop)} }

// prop is a sandbox on a stage.
type prop struct {
	stage *stage
	id    sandpit.ID
	spec  sandpit.Spec
	at    time.Time
	ended chan struct{}
	exit  sandpit.Exit

	state     sandpit.State // guarded by stage.mu
	disk      bool          // it is paused there
	saved     int           // checkpoints
	processes int
	files     int64         // bytes that it takes to save it
	written   int64         // bytes that are saved
	kept      int64         // bytes of its checkpoint
	deaf      chan struct{} // the guest answers when it is closed
}

func (s *stage) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	defer s.meter.enter("start", spec)()
	if err := s.act(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boxes[id] != nil {
		return nil, sandpit.Errorf(sandpit.AlreadyExists, "it exists")
	}
	p := &prop{stage: s, id: id, spec: spec.Clone(), at: time.Now(), ended: make(chan struct{}), state: sandpit.StateRunning}
	s.boxes[id] = p
	return p, nil
}

func (s *stage) act(ctx context.Context) error {
	s.mu.Lock()
	slow, fail := s.slow, s.fail
	if fail != nil {
		s.tries++
	}
	s.mu.Unlock()
	select {
	case <-time.After(slow):
		return fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

// set makes each change from now on slow, or fail.
func (s *stage) set(slow time.Duration, fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow, s.fail = slow, fail
}

func (s *stage) tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

// deafen makes the guest's next answer wait for the returned function.
func (s *stage) deafen(id sandpit.ID) (answer func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	deaf := make(chan struct{})
	s.boxes[id].deaf = deaf
	return func() { close(deaf) }
}

func (s *stage) state(id sandpit.ID) sandpit.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.boxes[id]; p != nil {
		return p.state
	}
	return ""
}

// busy has so many processes run in a sandbox.
func (s *stage) busy(id sandpit.ID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[id].processes = n
}

func (s *stage) List(context.Context) ([]sandpit.Placement, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []sandpit.Placement
	for _, id := range slices.Sorted(maps.Keys(s.boxes)) {
		p := s.boxes[id]
		one := sandpit.Placement{ID: id, Handle: p.Handle(), Spec: p.spec.Clone(), CreatedAt: p.at}
		if p.saved > 0 {
			one.CheckpointedAt, one.CheckpointBytes = time.Now(), p.kept
		}
		one.SavedBytes = p.written
		list = append(list, one)
	}
	return list, nil
}

func (s *stage) Attach(_ context.Context, handle []byte) (sandpit.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.boxes[sandpit.ID(handle)]; p != nil {
		return p, nil
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "no such sandbox")
}

func (s *stage) Close() error { return nil }

func (p *prop) ID() sandpit.ID             { return p.id }
func (p *prop) Handle() []byte             { return []byte(p.id) }
func (p *prop) Guest() sandpit.Guest       { return cast{prop: p} }
func (p *prop) HTTP(int) http.RoundTripper { return http.NewFileTransport(http.Dir("/nonexistent")) }

// cast is the guest of a prop: it can tell what runs, and nothing else.
type cast struct {
	sandpit.Guest

	prop *prop
}

func (c cast) ListProcesses(context.Context) ([]sandpit.ProcessInfo, error) {
	p := c.prop
	p.stage.mu.Lock()
	deaf := p.deaf
	p.deaf = nil
	p.stage.mu.Unlock()
	if deaf != nil {
		<-deaf
	}
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	if p.state != sandpit.StateRunning {
		return nil, sandpit.Errorf(sandpit.Conflict, "it is %s", p.state)
	}
	return make([]sandpit.ProcessInfo, p.processes), nil
}

func (p *prop) Wait(ctx context.Context) (sandpit.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	}
}

func (p *prop) Destroy(ctx context.Context) error {
	if err := p.stage.act(ctx); err != nil {
		return err
	}
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	if p.stage.boxes[p.id] == p {
		delete(p.stage.boxes, p.id)
		p.exit = sandpit.Exit{Reason: "destroyed"}
		close(p.ended)
	}
	return nil
}

func (p *prop) change(ctx context.Context, from, to sandpit.State) error {
	if err := p.stage.act(ctx); err != nil {
		return err
	}
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	if p.state != from {
		return sandpit.Errorf(sandpit.Conflict, "it is %s", p.state)
	}
	written := int64(0)
	if to == sandpit.StateStopped || to == sandpit.StateArchived {
		if err := sandpit.AdmitOf(ctx)(p.files); err != nil {
			return err
		}
		written = p.files
	}
	p.state, p.disk, p.written = to, false, written
	p.stage.noteSaved(p.spec.Labels["owner"])
	return nil
}

// EstimateSave says half of what it will be: the sandbox lies.
func (p *prop) EstimateSave(context.Context, bool) (int64, error) {
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	return p.files / 2, nil
}

// noteSaved remembers how much the owner of a sandbox has saved. The lock is held.
func (s *stage) noteSaved(owner string) {
	var count, bytes int64
	for _, p := range s.boxes {
		if p.spec.Labels["owner"] != owner {
			continue
		}
		if p.written > 0 {
			count++
		}
		bytes += p.written + p.kept
	}
	s.meter.note("saved "+owner, int(count))
	s.meter.note("bytes "+owner, int(bytes))
}

// fill has a sandbox take so many bytes when it is saved.
func (s *stage) fill(id sandpit.ID, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.boxes[id]; p != nil { // else it was deleted meanwhile
		p.files = bytes
	}
}

func (p *prop) Stop(ctx context.Context) error {
	defer p.stage.meter.enter("save", p.spec)()
	return p.change(ctx, sandpit.StateRunning, sandpit.StateStopped)
}

func (p *prop) Start(ctx context.Context) error {
	defer p.stage.meter.enter("start", p.spec)()
	return p.change(ctx, sandpit.StateStopped, sandpit.StateRunning)
}

func (p *prop) Pause(ctx context.Context) error {
	return p.change(ctx, sandpit.StateRunning, sandpit.StatePaused)
}

func (p *prop) Suspend(ctx context.Context) error {
	defer p.stage.meter.enter("save", p.spec)()
	if err := p.stage.act(ctx); err != nil {
		return err
	}
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	if p.state != sandpit.StateRunning && p.state != sandpit.StatePaused || p.disk {
		return sandpit.Errorf(sandpit.Conflict, "it is %s, on disk: %t", p.state, p.disk)
	}
	if err := sandpit.AdmitOf(ctx)(p.files); err != nil {
		return err
	}
	p.state, p.disk, p.written = sandpit.StatePaused, true, p.files
	p.stage.noteSaved(p.spec.Labels["owner"])
	return nil
}

func (p *prop) Checkpoint(ctx context.Context) error {
	defer p.stage.meter.enter("save", p.spec)()
	if err := p.stage.act(ctx); err != nil {
		return err
	}
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	if err := sandpit.AdmitOf(ctx)(p.files); err != nil {
		return err
	}
	p.saved++
	p.kept = p.files
	p.stage.noteSaved(p.spec.Labels["owner"])
	return nil
}

func (p *prop) Resume(ctx context.Context) error {
	if p.isOnDisk() {
		defer p.stage.meter.enter("start", p.spec)()
	}
	return p.change(ctx, sandpit.StatePaused, sandpit.StateRunning)
}

func (p *prop) isOnDisk() bool {
	p.stage.mu.Lock()
	defer p.stage.mu.Unlock()
	return p.disk
}

func (p *prop) Archive(ctx context.Context) error {
	defer p.stage.meter.enter("save", p.spec)()
	return p.change(ctx, sandpit.StateStopped, sandpit.StateArchived)
}

func (p *prop) Restore(ctx context.Context) error {
	defer p.stage.meter.enter("save", p.spec)()
	return p.change(ctx, sandpit.StateArchived, sandpit.StateStopped)
}
