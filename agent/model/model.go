// Package model is what an agent needs of a language model: one interface, and the messages, tool
// calls and usage that all vendors have in common.
package model

import (
	"context"
	"encoding/json"
	"errors"
)

// Model is a language model of a vendor, or one that stands for it in tests. All methods may be
// called concurrently.
type Model interface {
	// Name identifies the model for people, such as "claude-sonnet-4-5".
	Name() string
	// Window is how many tokens a request and its response may have together. 0: unknown.
	Window() int
	// Generate sends a conversation and returns the model's next message. It calls onDelta, which
	// may be nil, with each part of the message as it arrives, from one goroutine, before it
	// returns. It retries what is worth it, within the budget of its options.
	//
	// Unauthenticated: the key is not valid. Invalid: the vendor refuses the request.
	// Exhausted: a quota or rate limit of the vendor; Unavailable: try again later. Timeout: no
	// response in time. An error that is ErrTooLong: the conversation does not fit.
	Generate(ctx context.Context, r Request, onDelta func(Delta)) (Response, error)
}

// ErrTooLong says that a conversation is longer than the window of the model.
var ErrTooLong = errors.New("the conversation is too long for the model")

// Request is a conversation.
type Request struct {
	// System is the system prompt. Default: none.
	System string
	// Messages are the conversation so far, oldest first. The first is the user's.
	Messages []Message
	// Tools are the tools that the model may call. Default: none.
	Tools []Tool
	// MustCall requires the model to call a tool.
	MustCall bool
	// MaxTokens bounds the response. Default: the model's own.
	MaxTokens int
	// Temperature is from 0 to 2. Default: the model's own.
	Temperature *float64
}

// Role says whose message it is.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // the result of a tool call
)

// Message is a part of a conversation. Its JSON is the form of transcripts.
type Message struct {
	Role Role   `json:"role"`
	Text string `json:"text,omitempty"`
	// Images are part of a user's message or of a result.
	Images []Image `json:"images,omitempty"`
	// Calls are the calls of an assistant's message.
	Calls []ToolCall `json:"calls,omitempty"`
	// CallID is the call that a tool's message answers, and Failed says that the call failed.
	CallID string `json:"call_id,omitempty"`
	Failed bool   `json:"failed,omitempty"`
	// Opaque is what the vendor needs back with the message, such as signed reasoning.
	Opaque json.RawMessage `json:"opaque,omitempty"`
}

// Image is an image in a message.
type Image struct {
	MediaType string `json:"media_type"` // such as "image/png"
	Data      []byte `json:"data"`
}

// Tool describes a tool to a model.
type Tool struct {
	Name        string
	Description string
	// Schema is the JSON schema of the arguments, an object.
	Schema json.RawMessage
}

// ToolCall is a call that a model asks for.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments are as the model wrote them: they need not be valid JSON.
	Arguments string `json:"arguments"`
}

// StopReason says why a response ended.
type StopReason string

// The reasons.
const (
	StopEnd     StopReason = "end"     // the model is done
	StopTools   StopReason = "tools"   // it waits for results of calls
	StopLength  StopReason = "length"  // MaxTokens or the window is reached
	StopRefusal StopReason = "refusal" // the model or the vendor refuses to answer
)

// Response is a model's next message.
type Response struct {
	Message Message
	Stop    StopReason
	Usage   Usage
}

// Usage is how many tokens a request took.
type Usage struct {
	Input  int `json:"input"`            // cached ones included
	Cached int `json:"cached,omitempty"` // of them, read from a cache
	Output int `json:"output"`
}

// Add returns the sum of two usages.
func (u Usage) Add(o Usage) Usage {
	return Usage{Input: u.Input + o.Input, Cached: u.Cached + o.Cached, Output: u.Output + o.Output}
}

// Delta is a part of a message that is arriving.
type Delta struct {
	Text string
	// CallName is set when the model begins to write a call of a tool.
	CallName string
}
