package docker

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// sandboxTable holds the sandboxes that a Provider knows, by container.
type sandboxTable struct {
	mu     sync.Mutex
	list   map[string]*sandbox
	closed bool
}

func newSandboxTable() *sandboxTable { return &sandboxTable{list: make(map[string]*sandbox)} }

// ensureSandbox returns the sandbox of a container, and adds it if it is not known.
func (t *sandboxTable) ensureSandbox(p *Provider, id sandpit.ID, container string) (*sandbox, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	b := t.list[container]
	if b == nil {
		b = newSandbox(p, id, container)
		t.list[container] = b
	}
	return b, nil
}

// refuseSandboxes makes ensureSandbox fail from now on.
func (t *sandboxTable) refuseSandboxes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

func (t *sandboxTable) removeSandbox(b *sandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[b.container] == b {
		delete(t.list, b.container)
	}
}

func (t *sandboxTable) findSandbox(container string) *sandbox {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[container]
}

func (t *sandboxTable) listSandboxes() []*sandbox {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*sandbox, 0, len(t.list))
	for _, b := range t.list {
		list = append(list, b)
	}
	return list
}
