package script

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// The versions of the API. The new one has no sampling parameters.
const (
	oldVersion = "2023-06-01"
	newVersion = "2026-10-21"
)

// anthropic is how Anthropic's API complains.
type anthropic struct{}

func (anthropic) child(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (anthropic) item(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

func (a anthropic) unknown(path string) *refusal {
	return a.invalid(path, "Extra inputs are not permitted")
}

func (a anthropic) missing(path string) *refusal { return a.invalid(path, "Field required") }

func (a anthropic) wrongType(path, want string, _ json.RawMessage) *refusal {
	name := map[string]string{"object": "dictionary", "array": "list"}[want]
	if name == "" {
		name = want
	}
	return a.invalid(path, "Input should be a valid "+name)
}

func (a anthropic) outOfRange(path string, bound float64, above bool) *refusal {
	if path == "temperature" {
		return a.invalid(path, "range: 0..1")
	}
	word := "greater"
	if above {
		word = "less"
	}
	return a.invalid(path, fmt.Sprintf("Input should be %s than or equal to %v", word, bound))
}

func (anthropic) invalid(path, message string) *refusal {
	if path != "" {
		message = path + ": " + message
	}
	return &refusal{status: http.StatusBadRequest, kind: invalidRequest, message: message}
}

func (a anthropic) authorize(r *http.Request) (string, *refusal) {
	key, version := r.Header.Get("X-Api-Key"), r.Header.Get("Anthropic-Version")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	switch {
	case key == "":
		return "", &refusal{status: http.StatusUnauthorized, kind: "authentication_error", message: "x-api-key header is required"}
	case version == "":
		return "", a.invalid("anthropic-version", "header is required")
	case version != oldVersion && version != newVersion:
		return "", a.invalid("anthropic-version", `"`+version+`" is not a valid version`)
	}
	return key, nil
}

func (anthropic) wrongKey(string) *refusal {
	return &refusal{status: http.StatusUnauthorized, kind: "authentication_error", message: "invalid x-api-key"}
}

func (anthropic) unknownModel(name string) *refusal {
	return &refusal{status: http.StatusNotFound, kind: "not_found_error", message: "model: " + name}
}

func (anthropic) headerOfID() string { return "Request-Id" }

func (anthropic) failure(f *Failure) *refusal {
	r := map[Kind]*refusal{
		RateLimit:       {status: http.StatusTooManyRequests, kind: "rate_limit_error"},
		Quota:           {status: http.StatusBadRequest, kind: invalidRequest, message: "Your credit balance is too low to access the Anthropic API."},
		Overloaded:      {status: 529, kind: "overloaded_error"},
		ServerError:     {status: http.StatusInternalServerError, kind: "api_error"},
		Unauthenticated: {status: http.StatusUnauthorized, kind: "authentication_error"},
		InvalidRequest:  {status: http.StatusBadRequest, kind: invalidRequest},
		TooLong:         {status: http.StatusBadRequest, kind: invalidRequest},
	}[f.Kind]
	if r.message == "" || f.Message != "" {
		r.message = f.message()
	}
	r.retryHeader = f.retryHeader()
	return r
}

func (anthropic) writeRefusal(w http.ResponseWriter, r *refusal, id string) {
	setRetryAfter(w, r)
	writeJSON(w, r.status, map[string]any{"type": "error", "error": map[string]any{"type": r.kind, "message": r.message}, "request_id": "req_" + id})
}

func (messagesProtocol) failed(r *refusal) event {
	return event{"error", map[string]any{"type": "error", "error": map[string]any{"type": r.kind, "message": r.message}}}
}

var messagesStop = map[model.StopReason]string{
	model.StopEnd: "end_turn", model.StopTools: "tool_use", model.StopLength: "max_tokens", model.StopRefusal: "refusal",
}

// usageDocument returns the usage. Of the input, it counts what is not cached.
func usageDocument(u model.Usage, output int) map[string]any {
	return map[string]any{
		"input_tokens": u.Input - u.Cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": u.Cached, "output_tokens": output, "service_tier": "standard",
	}
}

// contentOf returns the blocks of a message.
func contentOf(a answer) []map[string]any {
	blocks := []map[string]any{}
	if a.turn.Thinking != "" {
		blocks = append(blocks, map[string]any{"type": "thinking", "thinking": a.turn.Thinking, "signature": encrypt(a.turn.Thinking)})
	}
	if a.text != "" {
		blocks = append(blocks, map[string]any{"type": "text", "text": a.text})
	}
	for _, call := range a.calls {
		input := json.RawMessage(call.Arguments)
		if !json.Valid(input) {
			input = encode(map[string]string{"raw": call.Arguments}) // the protocol has objects only
		}
		blocks = append(blocks, map[string]any{"type": "tool_use", "id": call.ID, "name": call.Name, "input": input})
	}
	return blocks
}

func (messagesProtocol) document(c call, a answer) any {
	return map[string]any{
		"id": "msg_" + c.id, "type": "message", "role": "assistant", "model": c.model, "content": contentOf(a), "container": nil, "stop_details": nil,
		"stop_reason": messagesStop[a.stop], "stop_sequence": nil, "usage": usageDocument(a.usage, a.usage.Output),
	}
}

func (messagesProtocol) events(c call, a answer) (open, rest []event) {
	message := map[string]any{
		"id": "msg_" + c.id, "type": "message", "role": "assistant", "model": c.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": usageDocument(a.usage, 1),
	}
	list := []event{{"message_start", map[string]any{"type": "message_start", "message": message}}, {"ping", map[string]any{"type": "ping"}}}
	said := len(list)
	for i, block := range contentOf(a) {
		list = appendBlock(list, i, block, a)
		if block["type"] == "text" {
			said = len(list) - 1 // without the event that ends the block
		}
	}
	delta := map[string]any{"stop_reason": messagesStop[a.stop], "stop_sequence": nil}
	list = append(list, event{"message_delta", map[string]any{"type": "message_delta", "delta": delta, "usage": usageDocument(a.usage, a.usage.Output)}},
		event{"message_stop", map[string]any{"type": "message_stop"}})
	return append([]event{}, list[:said]...), list[said:]
}

// appendBlock appends the events of block i.
func appendBlock(list []event, i int, block map[string]any, a answer) []event {
	begun := maps.Clone(block)
	var deltas []map[string]any
	switch block["type"] {
	case "thinking":
		begun["thinking"], begun["signature"] = "", ""
		deltas = append(deltas, map[string]any{"type": "thinking_delta", "thinking": block["thinking"]}, map[string]any{"type": "signature_delta", "signature": block["signature"]})
	case "text":
		begun["text"] = ""
		for _, word := range words(a.text) {
			deltas = append(deltas, map[string]any{"type": "text_delta", "text": word})
		}
	case "tool_use":
		begun["input"] = map[string]any{}
		deltas = append(deltas, map[string]any{"type": "input_json_delta", "partial_json": ""})
		for _, call := range a.calls {
			if call.ID != block["id"] {
				continue
			}
			for _, word := range words(call.Arguments) {
				deltas = append(deltas, map[string]any{"type": "input_json_delta", "partial_json": word})
			}
		}
	}
	list = append(list, event{"content_block_start", map[string]any{"type": "content_block_start", "index": i, "content_block": begun}})
	for _, delta := range deltas {
		list = append(list, event{"content_block_delta", map[string]any{"type": "content_block_delta", "index": i, "delta": delta}})
	}
	return append(list, event{"content_block_stop", map[string]any{"type": "content_block_stop", "index": i}})
}
