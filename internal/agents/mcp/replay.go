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

// replayStore keeps the newest messages of a session, so that a client whose connection broke
// gets the rest of an answer. What is too old goes by whole answers. The store of the SDK
// would take the first message of every answer instead, and never forget an answer.
type replayStore struct {
	memory *memory.Account // of what is kept

	mu      sync.Mutex
	size    int
	streams []*replayStream // the oldest first
}

var _ sdk.EventStore = (*replayStore)(nil)

// replayStream is an answer.
type replayStream struct {
	id       string
	messages [][]byte
	lost     bool // a message was too large to be kept
}

// Open implements sdk.EventStore.
func (p *replayStore) Open(_ context.Context, _, stream string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.findStream(stream) != nil {
		return nil
	}
	p.streams = append(p.streams, &replayStream{id: stream})
	if len(p.streams) > maxReplayStreams {
		p.evictOldest()
	}
	return nil
}

// findStream returns the answer of a name, or nil.
func (p *replayStore) findStream(id string) *replayStream {
	for _, s := range p.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

// evictOldest forgets the oldest answer. What belongs to none, whose name is "", stays, since
// clients may listen to that at any time.
func (p *replayStore) evictOldest() {
	i := slices.IndexFunc(p.streams, func(s *replayStream) bool { return s.id != "" })
	if i < 0 {
		i = 0
		p.streams = append(p.streams, &replayStream{lost: true})
	}
	for _, m := range p.streams[i].messages {
		p.size -= len(m)
		p.memory.Return(int64(len(m)))
	}
	p.streams = slices.Delete(p.streams, i, i+1)
}

// Append implements sdk.EventStore. What belongs to an answer that is forgotten is too.
func (p *replayStore) Append(_ context.Context, _, stream string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.findStream(stream)
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
		p.evictOldest()
	}
	if p.findStream(stream) == nil { // it was the oldest itself
		p.memory.Return(int64(len(data)))
		return nil
	}
	s.messages = append(s.messages, data)
	p.size += len(data)
	for p.size > maxReplay {
		p.evictOldest()
	}
	return nil
}

// After implements sdk.EventStore. NotFound: the answer is not kept, or not all of it.
func (p *replayStore) After(_ context.Context, _, stream string, index int) iter.Seq2[[]byte, error] {
	messages, err := p.messagesAfter(stream, index)
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

func (p *replayStore) messagesAfter(stream string, index int) ([][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.findStream(stream); s != nil && !s.lost {
		return slices.Clone(s.messages[min(max(index+1, 0), len(s.messages)):]), nil
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "the answer is not kept any more")
}

// SessionClosed implements sdk.EventStore.
func (p *replayStore) SessionClosed(context.Context, string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams, p.size = nil, 0
	p.memory.Close()
	return nil
}
