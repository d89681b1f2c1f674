package openai

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// responsesEvent is one event, as far as this package looks at it.
type responsesEvent struct {
	Type     string             `json:"type"`
	Delta    json.RawMessage    `json:"delta"`
	Item     json.RawMessage    `json:"item"`
	Response *responsesDocument `json:"response"`
	Error    json.RawMessage    `json:"error"`
}

// responsesDocument is the complete response that the last event has.
type responsesDocument struct {
	Status     string            `json:"status"`
	Output     []json.RawMessage `json:"output"`
	Error      json.RawMessage   `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Usage struct {
		Input   int `json:"input_tokens"`
		Output  int `json:"output_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	} `json:"usage"`
}

// outputItem is one item of a response.
type outputItem struct {
	Type    string `json:"type"`
	Content []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	} `json:"content"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Encrypted string `json:"encrypted_content"`
}

// responsesReader assembles a response.
type responsesReader struct {
	sender
	items []json.RawMessage
	final *responsesDocument
}

// ReadEvent implements endpoint.Reader.
func (r *responsesReader) ReadEvent(_ string, data []byte) error {
	var e responsesEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return endpoint.InvalidEvent(err)
	}
	switch e.Type {
	case "response.output_text.delta", "response.refusal.delta":
		var text string
		if err := json.Unmarshal(e.Delta, &text); err != nil {
			return endpoint.InvalidEvent(err)
		}
		r.send(model.Delta{Text: text})
	case "response.output_item.added":
		var item outputItem
		if err := json.Unmarshal(e.Item, &item); err != nil {
			return endpoint.InvalidEvent(err)
		}
		r.send(model.Delta{CallName: item.Name})
	case "response.output_item.done":
		r.items = append(r.items, e.Item)
	case "response.completed", "response.incomplete":
		if e.Response == nil {
			return endpoint.InvalidEvent(errors.New(e.Type + " has no response"))
		}
		r.final = e.Response
		return io.EOF
	case "response.failed":
		if e.Response == nil {
			return endpoint.InvalidEvent(errors.New(e.Type + " has no response"))
		}
		return endpoint.ParseError(e.Response.Error)
	case "error":
		// The fields of the error are those of the event, or below error.
		if len(e.Error) > 0 {
			return endpoint.ParseError(e.Error)
		}
		p := endpoint.ParseError(data)
		p.Type = ""
		return p
	}
	return nil
}

// Finish implements endpoint.Reader.
func (*responsesReader) Finish() error { return endpoint.ErrIncomplete }

// response returns the message that the items make up.
func (r *responsesReader) response() (model.Response, error) {
	items := r.final.Output
	if len(items) == 0 {
		items = r.items
	}
	m := model.Message{Role: model.RoleAssistant}
	var text strings.Builder
	var kept opaque
	refused, before := false, 0
	for _, raw := range items {
		var item outputItem
		if err := json.Unmarshal(raw, &item); err != nil {
			return model.Response{}, endpoint.InvalidEvent(err)
		}
		switch item.Type {
		case "message":
			for _, part := range item.Content {
				text.WriteString(cmp.Or(part.Text, part.Refusal))
				refused = refused || part.Type == "refusal"
			}
		case "function_call":
			m.Calls = append(m.Calls, newCall(item.CallID, item.Name, item.Arguments))
		case "reasoning":
			if item.Encrypted != "" { // else it is stored by the server, or not at all
				kept.Responses = append(kept.Responses, reasoning{Before: before, Item: raw})
			}
			continue
		}
		before++
	}
	m.Text = text.String()
	if len(kept.Responses) > 0 {
		var err error
		if m.Opaque, err = json.Marshal(kept); err != nil {
			return model.Response{}, endpoint.InvalidEvent(err)
		}
	}
	return model.Response{Message: m, Stop: r.stop(m, refused), Usage: r.usage()}, nil
}

func (r *responsesReader) usage() model.Usage {
	u := r.final.Usage
	return model.Usage{Input: u.Input, Cached: u.Details.Cached, Output: u.Output}
}

func (r *responsesReader) stop(m model.Message, refused bool) model.StopReason {
	switch {
	case refused || r.final.Incomplete.Reason == "content_filter":
		return model.StopRefusal
	case r.final.Status == "incomplete":
		return model.StopLength
	case len(m.Calls) > 0:
		return model.StopTools
	}
	return model.StopEnd
}
