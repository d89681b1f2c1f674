package anthropic

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// request is the body of a request for a message.
type request struct {
	Model       string      `json:"model"`
	MaxTokens   int         `json:"max_tokens"`
	System      []block     `json:"system,omitempty"`
	Messages    []message   `json:"messages"`
	Tools       []tool      `json:"tools,omitempty"`
	ToolChoice  *toolChoice `json:"tool_choice,omitempty"`
	Temperature *float64    `json:"temperature,omitempty"`
	Stream      bool        `json:"stream"`
}

type message struct {
	Role    string `json:"role"`
	Content []any  `json:"content"` // *block, or json.RawMessage of a block that is returned unchanged
}

// block is a part of a message.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	Source    *source         `json:"source,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   []*block        `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
	Cache     *cacheControl   `json:"cache_control,omitempty"`
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      []byte `json:"data"`
}

type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
	Cache       *cacheControl   `json:"cache_control,omitempty"`
}

type toolChoice struct {
	Type string `json:"type"`
}

type cacheControl struct {
	Type string `json:"type"`
}

// opaque is what a message keeps of its response: signed thinking, which the API requires back.
type opaque struct {
	Thinking []json.RawMessage `json:"anthropic_thinking"`
	// Order has an item for each block of the response: orderThinking, orderCall, or the size of a text in
	// bytes. Default: thinking, then one text, then calls.
	Order []int `json:"anthropic_order,omitempty"`
}

// Items of opaque.Order.
const (
	orderThinking = -1
	orderCall     = -2
)

// isUsual reports whether an order is the default.
func isUsual(order []int) bool {
	rank := func(item int) int {
		switch item {
		case orderThinking:
			return 0
		case orderCall:
			return 2
		}
		return 1
	}
	return slices.IsSortedFunc(order, func(a, b int) int { return rank(a) - rank(b) })
}

// fits reports whether a message still has the blocks of the response.
func (o opaque) fits(m model.Message) bool {
	thinking, calls, size := 0, 0, 0
	for _, item := range o.Order {
		switch {
		case item == orderThinking:
			thinking++
		case item == orderCall:
			calls++
		case item < 0:
			return false
		default:
			size += item
		}
	}
	return len(o.Order) > 0 && thinking == len(o.Thinking) && calls == len(m.Calls) && size == len(m.Text)
}

func (m *Model) newRequest(r model.Request) (request, error) {
	c := request{
		Model: m.o.Model, MaxTokens: cmp.Or(r.MaxTokens, m.o.MaxTokens, defaultMaxTokens), Stream: true, Temperature: r.Temperature,
	}
	if c.Temperature == nil {
		c.Temperature = m.o.Temperature
	}
	if m.cold.Load() {
		c.Temperature = nil
	}
	if c.Temperature != nil {
		c.Temperature = new(min(*c.Temperature, 1))
	}
	if strings.TrimSpace(r.System) != "" {
		c.System = []block{{Type: "text", Text: r.System}}
	}
	for _, t := range r.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		c.Tools = append(c.Tools, tool{Name: t.Name, Description: t.Description, InputSchema: schema})
	}
	if r.MustCall && len(r.Tools) > 0 && !m.free.Load() {
		c.ToolChoice = &toolChoice{Type: "any"}
	}
	if c.Messages = toMessages(r.Messages); len(c.Messages) == 0 {
		return request{}, sandpit.Errorf(sandpit.Invalid, "the conversation has no message with content")
	}
	if !m.o.NoCache {
		c.markCache()
	}
	return c, nil
}

// markCache asks for a cache of the tools, of the system prompt and of the whole conversation,
// which the next request begins with.
func (c *request) markCache() {
	mark := &cacheControl{Type: "ephemeral"}
	if len(c.Tools) > 0 {
		c.Tools[len(c.Tools)-1].Cache = mark
	}
	if len(c.System) > 0 {
		c.System[0].Cache = mark
	}
	content := c.Messages[len(c.Messages)-1].Content
	if last, ok := content[len(content)-1].(*block); ok {
		last.Cache = mark
	}
}

// toMessages converts a conversation. In this protocol results of calls are messages of the user,
// messages of one role are joined, and none is empty.
func toMessages(conversation []model.Message) []message {
	var list []message
	for _, m := range conversation {
		role, content := "user", toBlocks(m)
		if m.Role == model.RoleAssistant {
			role = "assistant"
		}
		if len(content) == 0 {
			continue
		}
		if n := len(list); n > 0 && list[n-1].Role == role {
			list[n-1].Content = append(list[n-1].Content, content...)
			continue
		}
		list = append(list, message{Role: role, Content: content})
	}
	return list
}

func toBlocks(m model.Message) []any {
	switch m.Role {
	case model.RoleUser:
	case model.RoleTool:
		result := &block{Type: "tool_result", ToolUseID: toID(m.CallID), IsError: m.Failed, Content: toContent(m)}
		if m.Failed && len(result.Content) == 0 {
			result.Content = []*block{{Type: "text", Text: "The call failed."}}
		}
		return []any{result}
	case model.RoleAssistant:
		return toAnswer(m)
	}
	var list []any
	for _, b := range toContent(m) {
		list = append(list, b)
	}
	return list
}

// toContent returns the text, which is not sent if it is blank, and the images.
func toContent(m model.Message) []*block {
	var list []*block
	if strings.TrimSpace(m.Text) != "" {
		list = append(list, &block{Type: "text", Text: m.Text})
	}
	for _, image := range m.Images {
		list = append(list, &block{Type: "image", Source: &source{Type: "base64", MediaType: image.MediaType, Data: image.Data}})
	}
	return list
}

func toAnswer(m model.Message) []any {
	var kept opaque
	if json.Unmarshal(m.Opaque, &kept) != nil { // another vendor has left it
		kept = opaque{}
	}
	if !kept.fits(m) {
		kept.Order = slices.Concat(slices.Repeat([]int{orderThinking}, len(kept.Thinking)), []int{len(m.Text)}, slices.Repeat([]int{orderCall}, len(m.Calls)))
	}
	var list []any
	text, calls := m.Text, m.Calls
	for _, item := range kept.Order {
		switch item {
		case orderThinking:
			list, kept.Thinking = append(list, kept.Thinking[0]), kept.Thinking[1:]
		case orderCall:
			list = append(list, &block{Type: "tool_use", ID: toID(calls[0].ID), Name: calls[0].Name, Input: endpoint.ToObject(calls[0].Arguments)})
			calls = calls[1:]
		default:
			// The API refuses a blank text, and a last message of the assistant that ends in spaces.
			if part := strings.TrimRight(text[:item], " \t\r\n"); part != "" {
				list = append(list, &block{Type: "text", Text: part})
			}
			text = text[item:]
		}
	}
	return list
}

// toID replaces the characters of another vendor's ID that the API does not accept.
func toID(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, id)
}
