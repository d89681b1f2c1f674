package mcp

import (
	"context"
	"iter"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// maxReplay is how much of what a session has said is kept for a client that lost its
	// connection, in bytes, and maxReplayStreams in answers.
	maxReplay        = 2 << 20
	maxReplayStreams = 64
)

// replay keeps the newest messages of a session, so that a client whose connection broke
// gets the rest of an answer. What is too old goes by whole answers. The store of the SDK
// would take the first message of every answer instead, and never forget an answer.
type replay struct {
	memory *memory.Account // of what is kept

	mu      sync.Mutex
	size    int
	streams []*replayed // the oldest first
}

var _ sdk.EventStore = (*replay)(nil)

// replayed is an answer.
type replayed struct {
	id       string
	messages [][]byte
	lost     bool // a message was too large to be kept
}

// Open implements sdk.EventStore.
func (p *replay) Open(_ context.Context, _, stream string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.find(stream) != nil {
		return nil
	}
	p.streams = append(p.streams, &replayed{id: stream})
	if len(p.streams) > maxReplayStreams {
		p.evict()
	}
	return nil
}

// find returns the answer of a name, or nil.
func (p *replay) find(id string) *replayed {
	for _, s := range p.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

// evict forgets the oldest answer. What belongs to none, whose name is "", stays, since
// clients may listen to that at any time.
func (p *replay) evict() {
	i := slices.IndexFunc(p.streams, func(s *replayed) bool { return s.id != "" })
	if i < 0 {
		i = 0
		p.streams = append(p.streams, &replayed{lost: true})
	}
	for _, m := range p.streams[i].messages {
		p.size -= len(m)
		p.memory.Return(int64(len(m)))
	}
	p.streams = slices.Delete(p.streams, i, i+1)
}

// Append implements sdk.EventStore. What belongs to an answer that is forgotten is too.
func (p *replay) Append(_ context.Context, _, stream string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.find(stream)
	if s == nil || s.lost {
		return nil
	}
	if len(data) > maxReplay {
		s.lost = true
		return nil
	}
	for p.memory.Reserve(int64(len(data))) != nil {
		if p.size == 0 {
			s.lost = true
			return nil
		}
		p.evict()
	}
	if p.find(stream) == nil { // it was the oldest itself
		p.memory.Return(int64(len(data)))
		return nil
	}
	s.messages = append(s.messages, data)
	p.size += len(data)
	for p.size > maxReplay {
		p.evict()
	}
	return nil
}

// After implements sdk.EventStore. NotFound: the answer is not kept, or not all of it.
func (p *replay) After(_ context.Context, _, stream string, index int) iter.Seq2[[]byte, error] {
	messages, err := p.after(stream, index)
	return func(yield func([]byte, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		for _, m := range messages {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (p *replay) after(stream string, index int) ([][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.find(stream); s != nil && !s.lost {
		return slices.Clone(s.messages[min(max(index+1, 0), len(s.messages)):]), nil
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "the answer is not kept any more")
}

// SessionClosed implements sdk.EventStore.
func (p *replay) SessionClosed(context.Context, string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams, p.size = nil, 0
	p.memory.Close()
	return nil
}
