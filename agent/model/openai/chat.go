package openai

import (
	"encoding/base64"
	"encoding/json"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// chatRequest is the body of a request for a chat completion.
type chatRequest struct {
	Model               string         `json:"model"`
	Messages            []chatMessage  `json:"messages"`
	Tools               []chatTool     `json:"tools,omitempty"`
	ToolChoice          string         `json:"tool_choice,omitempty"`
	MaxTokens           int            `json:"max_tokens,omitempty"`
	MaxCompletionTokens int            `json:"max_completion_tokens,omitempty"`
	Temperature         *float64       `json:"temperature,omitempty"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// chatMessage has a text or a list of parts as its content.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatPart struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function calledByChat `json:"function"`
}

type calledByChat struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (m *Model) newChatRequest(r model.Request) chatRequest {
	c := chatRequest{Model: m.o.Model, Stream: true}
	if m.accepts("stream_options") {
		c.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if m.accepts("temperature") {
		c.Temperature = r.Temperature
	}
	switch {
	case m.accepts("max_completion_tokens"):
		c.MaxCompletionTokens = r.MaxTokens
	case m.accepts("max_tokens"):
		c.MaxTokens = r.MaxTokens
	}
	for _, t := range r.Tools {
		c.Tools = append(c.Tools, chatTool{Type: "function", Function: chatFunction{Name: t.Name, Description: t.Description, Parameters: t.Schema}})
	}
	if r.MustCall && len(r.Tools) > 0 && m.accepts("tool_choice") {
		c.ToolChoice = "required"
	}
	c.Messages = toChatMessages(r)
	return c
}

// toChatMessages converts a conversation. Results of calls have no images in this protocol: they
// follow the results as a message of the user.
func toChatMessages(r model.Request) []chatMessage {
	var list []chatMessage
	if r.System != "" {
		list = append(list, chatMessage{Role: "system", Content: r.System})
	}
	var ofResults []chatPart
	for _, m := range r.Messages {
		if m.Role != model.RoleTool && ofResults != nil {
			list, ofResults = append(list, chatMessage{Role: "user", Content: ofResults}), nil
		}
		switch m.Role {
		case model.RoleTool:
			list = append(list, chatMessage{Role: "tool", ToolCallID: m.CallID, Content: resultText(m)})
			if len(m.Images) > 0 {
				ofResults = append(ofResults, chatPart{Type: "text", Text: "Images of the result of call " + m.CallID + ":"})
				ofResults = appendImages(ofResults, m.Images)
			}
		case model.RoleAssistant:
			list = append(list, toChatAnswer(m))
		case model.RoleUser:
			list = append(list, toChatQuestion(m))
		}
	}
	if ofResults != nil {
		list = append(list, chatMessage{Role: "user", Content: ofResults})
	}
	return list
}

// resultText returns the text of a result. The protocols of OpenAI have no field for a failure.
func resultText(m model.Message) string {
	if m.Failed {
		return "Error: " + m.Text
	}
	return m.Text
}

func toChatQuestion(m model.Message) chatMessage {
	if len(m.Images) == 0 {
		return chatMessage{Role: "user", Content: m.Text}
	}
	var parts []chatPart
	if m.Text != "" {
		parts = append(parts, chatPart{Type: "text", Text: m.Text})
	}
	return chatMessage{Role: "user", Content: appendImages(parts, m.Images)}
}

func appendImages(parts []chatPart, images []model.Image) []chatPart {
	for _, image := range images {
		parts = append(parts, chatPart{Type: "image_url", ImageURL: &imageURL{URL: dataURL(image)}})
	}
	return parts
}

func dataURL(image model.Image) string {
	return "data:" + image.MediaType + ";base64," + base64.StdEncoding.EncodeToString(image.Data)
}

func toChatAnswer(m model.Message) chatMessage {
	answer := chatMessage{Role: "assistant"}
	if m.Text != "" || len(m.Calls) == 0 {
		answer.Content = m.Text
	}
	for _, call := range m.Calls {
		answer.ToolCalls = append(answer.ToolCalls, chatCall{
			ID: call.ID, Type: "function", Function: calledByChat{Name: call.Name, Arguments: string(endpoint.ToObject(call.Arguments))},
		})
	}
	return answer
}
