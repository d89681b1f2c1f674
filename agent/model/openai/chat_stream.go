package openai

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/internal/endpoint"
)

// maxCalls bounds how many tools one message may call.
const maxCalls = 256

// chatChunk is one event of a chat completion.
type chatChunk struct {
	Choices []struct {
		Delta struct {
			Content   partsText   `json:"content"`
			Refusal   string      `json:"refusal"`
			ToolCalls []callChunk `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage      `json:"usage"`
	Error json.RawMessage `json:"error"`
	// Object is "error" if the chunk itself is the error, as of older versions of vLLM.
	Object string `json:"object"`
}

type callChunk struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string   `json:"name"`
		Arguments jsonText `json:"arguments"`
	} `json:"function"`
}

// jsonText is a text with JSON, or the JSON value itself, as some servers send it.
type jsonText string

// UnmarshalJSON implements json.Unmarshaler.
func (t *jsonText) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(t))
	}
	if string(raw) != "null" {
		*t = jsonText(raw)
	}
	return nil
}

// partsText is a text, or a list of parts of which those of the type text count, as some servers send it.
type partsText string

// UnmarshalJSON implements json.Unmarshaler.
func (t *partsText) UnmarshalJSON(raw []byte) error {
	if raw[0] != '[' {
		return json.Unmarshal(raw, (*string)(t))
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Type == "text" {
			*t += partsText(p.Text)
		}
	}
	return nil
}

type chatUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// chatReader assembles a chat completion.
type chatReader struct {
	sender
	text, refusal strings.Builder
	calls         []*chatCallReader
	finish        string
	usage         model.Usage
}

// chatCallReader assembles one call.
type chatCallReader struct {
	index     int
	id, name  string
	arguments strings.Builder
}

// ReadEvent implements endpoint.Reader.
func (r *chatReader) ReadEvent(_ string, data []byte) error {
	if string(data) == "[DONE]" {
		if err := r.Finish(); err != nil {
			return err
		}
		return io.EOF
	}
	var chunk chatChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return endpoint.InvalidEvent(err)
	}
	if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
		return endpoint.ParseError(chunk.Error)
	}
	if chunk.Object == "error" {
		return endpoint.ParseError(data)
	}
	if u := chunk.Usage; u != nil {
		r.usage = model.Usage{Input: u.Prompt, Cached: u.Details.Cached, Output: u.Completion}
	}
	if len(chunk.Choices) == 0 {
		return nil // usage, or a filter's report of Azure
	}
	choice := chunk.Choices[0]
	r.refusal.WriteString(choice.Delta.Refusal)
	content := string(choice.Delta.Content)
	r.text.WriteString(content)
	r.send(model.Delta{Text: content + choice.Delta.Refusal})
	for _, c := range choice.Delta.ToolCalls {
		if err := r.readCall(c); err != nil {
			return err
		}
	}
	r.finish = cmp.Or(choice.FinishReason, r.finish)
	return nil
}

// readCall takes a part of a call. Some servers number no calls, or all of them with 0.
func (r *chatReader) readCall(c callChunk) error {
	index := max(len(r.calls)-1, 0)
	switch {
	case c.Index != nil:
		index = *c.Index
	case c.ID != "" || len(r.calls) == 0:
		index = len(r.calls)
	}
	var call *chatCallReader
	for _, known := range r.calls {
		if known.index == index && (c.ID == "" || known.id == "" || c.ID == known.id) {
			call = known
		}
	}
	if call == nil {
		if len(r.calls) == maxCalls {
			return endpoint.InvalidEvent(fmt.Errorf("more than %d calls", maxCalls))
		}
		call = &chatCallReader{index: index}
		r.calls = append(r.calls, call)
	}
	call.id = cmp.Or(call.id, c.ID)
	if call.name == "" && c.Function.Name != "" {
		call.name = c.Function.Name
		r.send(model.Delta{CallName: call.name})
	}
	call.arguments.WriteString(string(c.Function.Arguments))
	return nil
}

// Finish implements endpoint.Reader. Some servers end without [DONE].
func (r *chatReader) Finish() error {
	if r.finish == "" {
		return endpoint.ErrIncomplete
	}
	return nil
}

func (r *chatReader) response() model.Response {
	m := model.Message{Role: model.RoleAssistant, Text: r.text.String() + r.refusal.String()}
	for _, c := range r.calls {
		m.Calls = append(m.Calls, newCall(c.id, c.name, c.arguments.String()))
	}
	res := model.Response{Message: m, Usage: r.usage, Stop: model.StopEnd}
	switch {
	case r.finish == "content_filter" || r.refusal.Len() > 0:
		res.Stop = model.StopRefusal
	case r.finish == "length":
		res.Stop = model.StopLength
	case len(m.Calls) > 0: // some servers say "stop" here
		res.Stop = model.StopTools
	}
	return res
}

// newCall returns a call. It gets an ID if the server gave it none, because results refer to it.
func newCall(id, name, arguments string) model.ToolCall {
	if id == "" {
		id = "call_" + rand.Text()
	}
	return model.ToolCall{ID: id, Name: name, Arguments: cmp.Or(arguments, "{}")}
}
