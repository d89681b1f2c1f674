package preview

import (
	"context"
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// portStore keeps the settings of ports, as store.Sandboxes does.
type portStore interface {
	ListPreviews(ctx context.Context) ([]store.Preview, error)
	SetPreview(ctx context.Context, p store.Preview) error
}

// sandboxes has the records of sandboxes, as manager.Manager does.
type sandboxes interface {
	Get(id sandpit.ID) (sandpit.Sandbox, error)
}

// portSettings are the settings of ports: a copy in memory of what the store has. All methods may be
// called concurrently.
type portSettings struct {
	store     portStore
	sandboxes sandboxes

	changing sync.Mutex // held while the settings of a port change
	mu       sync.Mutex
	byPort   map[spot]store.Preview
}

// spot is a port of a sandbox.
type spot struct {
	id   sandpit.ID
	port int
}

// openPortSettings reads the settings from the store.
func openPortSettings(ctx context.Context, s portStore, b sandboxes) (*portSettings, error) {
	list, err := s.ListPreviews(ctx)
	if err != nil {
		return nil, err
	}
	ports := &portSettings{store: s, sandboxes: b, byPort: make(map[spot]store.Preview, len(list))}
	for _, p := range list {
		ports.byPort[spot{p.Sandbox, p.Port}] = p
	}
	return ports, nil
}

// find returns the settings of a port, which by default is private.
func (s *portSettings) find(id sandpit.ID, port int) store.Preview {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.byPort[spot{id, port}]
	if !ok {
		p = store.Preview{Sandbox: id, Port: port}
	}
	return p
}

// change edits the settings of a port, in the store first.
func (s *portSettings) change(ctx context.Context, id sandpit.ID, port int, edit func(*store.Preview)) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	before := s.find(id, port)
	p := before
	if edit(&p); p == before {
		return nil
	}
	if err := s.store.SetPreview(ctx, p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPort[spot{id, port}] = p
	s.prune()
	return nil
}

// pruneAbove is the number of ports above which a change removes those of sandboxes that no longer
// exist.
const pruneAbove = 1000

// prune removes ports of sandboxes whose rows no longer exist. The lock is held.
func (s *portSettings) prune() {
	if len(s.byPort) <= pruneAbove {
		return
	}
	for at := range s.byPort {
		if _, err := s.sandboxes.Get(at.id); sandpit.CodeOf(err) == sandpit.NotFound {
			delete(s.byPort, at)
		}
	}
}

// listPublic returns the public ports of a sandbox, in order.
func (s *portSettings) listPublic(id sandpit.ID) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []int
	for at, p := range s.byPort {
		if at.id == id && p.Public {
			list = append(list, at.port)
		}
	}
	slices.Sort(list)
	return list
}
