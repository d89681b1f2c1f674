package anthropic

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// maxBlocks bounds how many blocks one message may have.
const maxBlocks = 512

// event is one event of a message.
type event struct {
	Type    string `json:"type"`
	Message struct {
		Usage usage `json:"usage"`
	} `json:"message"`
	Index int             `json:"index"`
	Block json.RawMessage `json:"content_block"`
	Delta struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
		Thinking    string `json:"thinking"`
		Signature   string `json:"signature"`
		StopReason  string `json:"stop_reason"`
	} `json:"delta"`
	Usage usage           `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// usage has null for what has not changed.
type usage struct {
	Input         int `json:"input_tokens"`
	CacheCreation int `json:"cache_creation_input_tokens"`
	CacheRead     int `json:"cache_read_input_tokens"`
	Output        int `json:"output_tokens"`
}

// reader assembles a message.
type reader struct {
	onDelta   func(model.Delta)
	delivered bool
	blocks    []*blockReader
	usage     usage
	stop      string
}

// blockReader assembles one block.
type blockReader struct {
	first struct {
		Type      string          `json:"type"`
		Text      string          `json:"text"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
	}
	raw                        json.RawMessage
	text, arguments, signature strings.Builder
}

// Delivered implements endpoint.Reader.
func (r *reader) Delivered() bool { return r.delivered }

// Finish implements endpoint.Reader.
func (*reader) Finish() error { return endpoint.ErrIncomplete }

func (r *reader) send(d model.Delta) {
	if r.onDelta != nil && d != (model.Delta{}) {
		r.delivered = true
		r.onDelta(d)
	}
}

// ReadEvent implements endpoint.Reader.
func (r *reader) ReadEvent(_ string, data []byte) error {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return endpoint.InvalidEvent(err)
	}
	switch e.Type {
	case "message_start":
		r.usage = e.Message.Usage
	case "content_block_start":
		return r.beginBlock(e)
	case "content_block_delta":
		return r.continueBlock(e)
	case "message_delta":
		r.stop = cmp.Or(e.Delta.StopReason, r.stop)
		u := e.Usage
		r.usage = usage{
			Input: cmp.Or(u.Input, r.usage.Input), CacheCreation: cmp.Or(u.CacheCreation, r.usage.CacheCreation),
			CacheRead: cmp.Or(u.CacheRead, r.usage.CacheRead), Output: cmp.Or(u.Output, r.usage.Output),
		}
	case "message_stop":
		if r.stop == "" {
			return endpoint.ErrIncomplete
		}
		return io.EOF
	case "error":
		return endpoint.ParseError(e.Error)
	}
	return nil
}

func (r *reader) beginBlock(e event) error {
	if e.Index != len(r.blocks) || e.Index >= maxBlocks {
		return endpoint.InvalidEvent(fmt.Errorf("block %d begins after %d blocks", e.Index, len(r.blocks)))
	}
	b := &blockReader{raw: e.Block}
	if err := json.Unmarshal(e.Block, &b.first); err != nil {
		return endpoint.InvalidEvent(err)
	}
	r.blocks = append(r.blocks, b)
	switch b.first.Type {
	case "text":
		b.text.WriteString(b.first.Text)
		r.send(model.Delta{Text: b.first.Text})
	case "thinking":
		b.text.WriteString(b.first.Thinking)
		b.signature.WriteString(b.first.Signature)
	case "tool_use":
		r.send(model.Delta{CallName: b.first.Name})
	}
	return nil
}

func (r *reader) continueBlock(e event) error {
	if e.Index < 0 || e.Index >= len(r.blocks) {
		return endpoint.InvalidEvent(fmt.Errorf("block %d has not begun", e.Index))
	}
	b := r.blocks[e.Index]
	switch e.Delta.Type {
	case "text_delta":
		b.text.WriteString(e.Delta.Text)
		r.send(model.Delta{Text: e.Delta.Text})
	case "input_json_delta":
		b.arguments.WriteString(e.Delta.PartialJSON)
	case "thinking_delta":
		b.text.WriteString(e.Delta.Thinking)
	case "signature_delta":
		b.signature.WriteString(e.Delta.Signature)
	}
	return nil
}

func (r *reader) response() (model.Response, error) {
	m := model.Message{Role: model.RoleAssistant}
	var text strings.Builder
	var kept opaque
	for _, b := range r.blocks {
		switch b.first.Type {
		case "text":
			text.WriteString(b.text.String())
			kept.Order = append(kept.Order, b.text.Len())
		case "tool_use":
			kept.Order = append(kept.Order, orderCall)
			m.Calls = append(m.Calls, model.ToolCall{ID: b.first.ID, Name: b.first.Name, Arguments: b.input()})
		case "thinking":
			raw, err := json.Marshal(map[string]string{"type": "thinking", "thinking": b.text.String(), "signature": b.signature.String()})
			if err != nil {
				return model.Response{}, endpoint.InvalidEvent(err)
			}
			kept.Thinking, kept.Order = append(kept.Thinking, raw), append(kept.Order, orderThinking)
		case "redacted_thinking":
			kept.Thinking, kept.Order = append(kept.Thinking, b.raw), append(kept.Order, orderThinking)
		}
	}
	m.Text = text.String()
	if isUsual(kept.Order) {
		kept.Order = nil
	}
	if len(kept.Thinking) > 0 {
		var err error
		if m.Opaque, err = json.Marshal(kept); err != nil {
			return model.Response{}, endpoint.InvalidEvent(err)
		}
	}
	u := r.usage
	return model.Response{
		Message: m, Stop: stopReason(r.stop),
		Usage: model.Usage{Input: u.Input + u.CacheCreation + u.CacheRead, Cached: u.CacheRead, Output: u.Output},
	}, nil
}

// input returns the arguments of a call: the pieces that were sent, or what the block began with.
func (b *blockReader) input() string {
	if b.arguments.Len() > 0 {
		return b.arguments.String()
	}
	return cmp.Or(string(b.first.Input), "{}")
}

func stopReason(reason string) model.StopReason {
	switch reason {
	case "tool_use":
		return model.StopTools
	case "max_tokens", "model_context_window_exceeded":
		return model.StopLength
	case "refusal":
		return model.StopRefusal
	}
	return model.StopEnd
}
