package script

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// chatProtocol is OpenAI's chat completions.
type chatProtocol struct{ openAI }

var chatParameters = []string{
	"messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
	"max_tokens", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
	"prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
	"stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
}

func (chatProtocol) parse(c *checker, body field) call {
	f := c.object(body, chatParameters...)
	if c.err != nil {
		return call{}
	}
	parsed := call{model: c.text(c.need(f["model"])), stream: c.boolean(f["stream"])}
	r := &parsed.request
	r.Temperature = c.temperature(f["temperature"], 2)
	r.MaxTokens = max(c.integer(f["max_tokens"]), c.integer(f["max_completion_tokens"]))
	if f["max_tokens"].isSet() && f["max_completion_tokens"].isSet() {
		c.invalid(f["max_tokens"], "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
	}
	for _, name := range []string{"functions", "function_call", "audio"} {
		if f[name].isSet() {
			c.invalid(f[name], "This server does not support '"+name+"'.")
		}
	}
	if n := c.integer(f["n"]); n > 1 {
		c.invalid(f["n"], "This server does not support more than one choice.")
	}
	if options := f["stream_options"]; options.isSet() {
		if !parsed.stream {
			c.invalid(options, "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
		}
		parsed.usage = c.boolean(c.object(options, "include_usage", "include_obfuscation")["include_usage"])
	}
	for _, tool := range c.list(f["tools"]) {
		r.Tools = append(r.Tools, readChatTool(c, tool))
	}
	r.MustCall = readChoice(c, f["tool_choice"], r.Tools)
	readChatMessages(c, f["messages"], r)
	return parsed
}

func readChatTool(c *checker, tool field) model.Tool {
	f := c.object(tool, "type", "function")
	if kind := c.text(c.need(f["type"])); c.err == nil && kind != "function" {
		c.invalid(f["type"], fmt.Sprintf("Invalid value: '%s'. Supported values are: 'function'.", kind))
	}
	return readFunction(c, c.object(c.need(f["function"]), "name", "description", "parameters", "strict"))
}

// readChatMessages reads the conversation and checks its order: each call has its result at once,
// and each result has its call.
func readChatMessages(c *checker, messages field, r *model.Request) {
	list := c.list(c.need(messages))
	if c.err == nil && len(list) == 0 {
		c.fail(refuseParameter("messages", "empty_array", "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."))
	}
	var missing missingCalls
	for i, raw := range list {
		f := c.object(raw, "role", "content", "name", "refusal", "audio", "function_call", "tool_calls", "tool_call_id", "annotations")
		role := c.text(c.need(f["role"]))
		if c.err != nil {
			return
		}
		if len(missing) > 0 && role != "tool" {
			c.refuseMissing(missing, i)
			return
		}
		switch role {
		case "system", "developer":
			text, _ := readChatContent(c, f["content"], role)
			r.System = strings.TrimPrefix(r.System+"\n"+text, "\n")
		case "user":
			text, images := readChatContent(c, f["content"], role)
			r.Messages = append(r.Messages, model.Message{Role: model.RoleUser, Text: text, Images: images})
		case "assistant":
			m := readChatAnswer(c, f)
			for _, call := range m.Calls {
				missing = append(missing, call.ID)
			}
			r.Messages = append(r.Messages, m)
		case "tool":
			text, _ := readChatContent(c, f["content"], role)
			id := c.text(c.need(f["tool_call_id"]))
			if c.err == nil && !missing.answer(id) {
				c.fail(refuseParameter(fmt.Sprintf("messages.[%d].role", i), "",
					"Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."))
			}
			r.Messages = append(r.Messages, model.Message{Role: model.RoleTool, CallID: id, Text: text})
		default:
			c.invalid(f["role"], fmt.Sprintf("Invalid value: '%s'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.", role))
		}
	}
	if len(missing) > 0 {
		c.refuseMissing(missing, len(list))
	}
}

func (c *checker) refuseMissing(missing missingCalls, i int) {
	c.fail(refuseParameter(fmt.Sprintf("messages.[%d].role", i), "",
		"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "+
			"The following tool_call_ids did not have response messages: "+strings.Join(missing, ", ")))
}

// readChatContent reads a text or a list of parts.
func readChatContent(c *checker, content field, role string) (text string, images []model.Image) {
	if c.need(content).kind() != '[' {
		return c.text(content), nil
	}
	for _, part := range c.list(content) {
		f := c.object(part, "type", "text", "image_url", "refusal", "input_audio", "file")
		switch kind := c.text(c.need(f["type"])); {
		case kind == "text":
			text += c.text(c.need(f["text"]))
		case kind == "image_url" && role == "user":
			url := c.object(c.need(f["image_url"]), "url", "detail")
			images = append(images, readDataURL(c, url["url"]))
		case kind == "image_url":
			c.invalid(part, fmt.Sprintf("Invalid '%s'. Image URLs are only allowed for messages with role 'user', but this message with role '%s' contains an image URL.", part.path, role))
		default:
			c.invalid(f["type"], fmt.Sprintf("Invalid value: '%s'. Supported values are: 'text' and 'image_url'.", kind))
		}
	}
	return text, images
}

func readChatAnswer(c *checker, f map[string]field) model.Message {
	m := model.Message{Role: model.RoleAssistant}
	if f["content"].isSet() {
		m.Text, _ = readChatContent(c, f["content"], "assistant")
	} else if !f["tool_calls"].isSet() {
		c.invalid(f["content"], "Invalid value for 'content': expected a string, got null.")
	}
	calls := c.list(f["tool_calls"])
	if f["tool_calls"].isSet() && c.err == nil && len(calls) == 0 {
		c.fail(refuseParameter(f["tool_calls"].path, "empty_array", fmt.Sprintf("Invalid '%s': empty array. Expected an array with minimum length 1, but got an empty array instead.", f["tool_calls"].path)))
	}
	for _, raw := range calls {
		call := c.object(raw, "id", "type", "function")
		called := c.object(c.need(call["function"]), "name", "arguments")
		one := model.ToolCall{ID: c.text(c.need(call["id"])), Name: c.text(c.need(called["name"])), Arguments: c.text(c.need(called["arguments"]))}
		if kind := c.text(c.need(call["type"])); c.err == nil && kind != "function" {
			c.invalid(call["type"], fmt.Sprintf("Invalid value: '%s'. Supported values are: 'function'.", kind))
		}
		if c.err == nil && !isToolName(one.Name, 64) {
			c.invalid(called["name"], fmt.Sprintf("Invalid '%s': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", called["name"].path))
		}
		if c.err == nil && slices.ContainsFunc(m.Calls, func(other model.ToolCall) bool { return other.ID == one.ID }) {
			c.invalid(call["id"], fmt.Sprintf("Duplicate value for 'tool_call_id' of '%s'.", one.ID))
		}
		m.Calls = append(m.Calls, one)
	}
	return m
}

var chatFinish = map[model.StopReason]string{
	model.StopEnd: "stop", model.StopTools: "tool_calls", model.StopLength: "length", model.StopRefusal: "content_filter",
}

func chatCalls(a answer, streamed bool) []map[string]any {
	var list []map[string]any
	for i, call := range a.calls {
		one := map[string]any{"id": call.ID, "type": "function", "function": map[string]any{"name": call.Name, "arguments": call.Arguments}}
		if streamed {
			one["index"] = i
			one["function"] = map[string]any{"name": call.Name, "arguments": ""}
		}
		list = append(list, one)
	}
	return list
}

func chatUsage(u model.Usage) map[string]any {
	return map[string]any{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details":     map[string]any{"cached_tokens": u.Cached, "audio_tokens": 0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
	}
}

// created is the time of all responses: scripts have the same output each time.
const created = 1750000000

func (chatProtocol) document(c call, a answer) any {
	message := map[string]any{"role": "assistant", "content": textOrNull(a.text), "refusal": nil, "annotations": []any{}}
	if len(a.calls) > 0 {
		message["tool_calls"] = chatCalls(a, false)
	}
	return map[string]any{
		"id": "chatcmpl-" + c.id, "object": "chat.completion", "created": created, "model": c.model, "service_tier": "default",
		"system_fingerprint": "fp_script", "usage": chatUsage(a.usage),
		"choices": []any{map[string]any{"index": 0, "message": message, "logprobs": nil, "finish_reason": chatFinish[a.stop]}},
	}
}

func (chatProtocol) events(c call, a answer) (open, rest []event) {
	chunk := func(choices []any, usage any) event {
		document := map[string]any{
			"id": "chatcmpl-" + c.id, "object": "chat.completion.chunk", "created": created, "model": c.model, "service_tier": "default",
			"system_fingerprint": "fp_script", "choices": choices,
		}
		if c.usage {
			document["usage"] = usage
		}
		return event{"", document}
	}
	delta := func(delta map[string]any, finish any) event {
		return chunk([]any{map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}}, nil)
	}
	open = append(open, delta(map[string]any{"role": "assistant", "content": "", "refusal": nil}, nil))
	for _, word := range words(a.text) {
		open = append(open, delta(map[string]any{"content": word}, nil))
	}
	for i, call := range chatCalls(a, true) {
		rest = append(rest, delta(map[string]any{"tool_calls": []any{call}}, nil))
		for _, word := range words(a.calls[i].Arguments) {
			rest = append(rest, delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": word}}}}, nil))
		}
	}
	rest = append(rest, delta(map[string]any{}, chatFinish[a.stop]))
	if c.usage {
		rest = append(rest, chunk([]any{}, chatUsage(a.usage)))
	}
	return open, append(rest, event{"", "[DONE]"})
}

func (chatProtocol) failed(r *refusal) event {
	return event{"", map[string]any{"error": r.document()}}
}
