package openai

import (
	"encoding/json"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// responsesRequest is the body of a request for a response. The conversation is not stored.
type responsesRequest struct {
	Model           string          `json:"model"`
	Instructions    string          `json:"instructions,omitempty"`
	Input           []any           `json:"input"`
	Tools           []responsesTool `json:"tools,omitempty"`
	ToolChoice      string          `json:"tool_choice,omitempty"`
	MaxOutputTokens int             `json:"max_output_tokens,omitempty"`
	Temperature     *float64        `json:"temperature,omitempty"`
	Include         []string        `json:"include,omitempty"`
	Store           bool            `json:"store"`
	Stream          bool            `json:"stream"`
}

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
}

// inputMessage has a text or a list of parts as its content.
type inputMessage struct {
	Type    string `json:"type"`
	Role    string `json:"role"`
	Content any    `json:"content"`
}

type inputPart struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

type inputCall struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type inputResult struct {
	Type   string `json:"type"`
	CallID string `json:"call_id"`
	Output any    `json:"output"`
}

// opaque is what a message keeps of its response: items of reasoning, and their positions
// between the other items.
type opaque struct {
	Responses []reasoning `json:"openai_responses"`
}

type reasoning struct {
	Before int             `json:"before"`
	Item   json.RawMessage `json:"item"`
}

func (m *Model) newResponsesRequest(r model.Request) responsesRequest {
	c := responsesRequest{Model: m.o.Model, Instructions: r.System, Stream: true, MaxOutputTokens: r.MaxTokens, Input: []any{}}
	if m.accepts("temperature") {
		c.Temperature = r.Temperature
	}
	if m.accepts("include") {
		c.Include = []string{"reasoning.encrypted_content"}
	}
	for _, t := range r.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		c.Tools = append(c.Tools, responsesTool{Type: "function", Name: t.Name, Description: t.Description, Parameters: schema})
	}
	if r.MustCall && len(r.Tools) > 0 && m.accepts("tool_choice") {
		c.ToolChoice = "required"
	}
	for _, message := range r.Messages {
		c.Input = append(c.Input, toItems(message)...)
	}
	return c
}

// toItems converts one message.
func toItems(m model.Message) []any {
	switch m.Role {
	case model.RoleAssistant:
	case model.RoleTool:
		if len(m.Images) == 0 {
			return []any{inputResult{Type: "function_call_output", CallID: m.CallID, Output: resultText(m)}}
		}
		return []any{inputResult{Type: "function_call_output", CallID: m.CallID, Output: toInputParts(resultText(m), m.Images)}}
	case model.RoleUser:
		return []any{inputMessage{Type: "message", Role: "user", Content: toInputParts(m.Text, m.Images)}}
	}
	var items []any
	if m.Text != "" {
		items = append(items, inputMessage{Type: "message", Role: "assistant", Content: m.Text})
	}
	for _, call := range m.Calls {
		items = append(items, inputCall{Type: "function_call", CallID: call.ID, Name: call.Name, Arguments: string(endpoint.ToObject(call.Arguments))})
	}
	return insertReasoning(items, m.Opaque)
}

// insertReasoning puts the items of reasoning back to where they were. What another vendor has
// left is ignored.
func insertReasoning(items []any, raw json.RawMessage) []any {
	var o opaque
	if json.Unmarshal(raw, &o) != nil || len(o.Responses) == 0 {
		return items
	}
	var all []any
	for i := range len(items) + 1 {
		for _, r := range o.Responses {
			if r.Before == i || i == len(items) && r.Before > i {
				all = append(all, r.Item)
			}
		}
		if i < len(items) {
			all = append(all, items[i])
		}
	}
	return all
}

func toInputParts(text string, images []model.Image) []inputPart {
	parts := []inputPart{}
	if text != "" || len(images) == 0 {
		parts = append(parts, inputPart{Type: "input_text", Text: text})
	}
	for _, image := range images {
		parts = append(parts, inputPart{Type: "input_image", ImageURL: dataURL(image), Detail: "auto"})
	}
	return parts
}
