package script

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// responsesProtocol is OpenAI's responses. It stores none.
type responsesProtocol struct{ openAI }

var responsesParameters = []string{
	"access_programs", "background", "context_management", "conversation", "image", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
	"model", "moderation", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning",
	"safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs",
	"top_p", "truncation", "user",
}

func (responsesProtocol) parse(c *checker, body field) call {
	f := c.object(body, responsesParameters...)
	if c.err != nil {
		return call{}
	}
	parsed := call{model: c.text(c.need(f["model"])), stream: c.boolean(f["stream"])}
	r := &parsed.request
	r.System = c.text(f["instructions"])
	r.MaxTokens = c.integer(f["max_output_tokens"])
	r.Temperature = c.temperature(f["temperature"], 2)
	c.boolean(f["store"])
	if f["previous_response_id"].isSet() {
		id := c.text(f["previous_response_id"])
		c.fail(refuseParameter("previous_response_id", "previous_response_not_found", fmt.Sprintf("Previous response with id '%s' not found.", id)))
	}
	for _, name := range []string{"background", "conversation", "prompt"} {
		if f[name].isSet() && string(f[name].raw) != "false" {
			c.invalid(f[name], "This server does not support '"+name+"'.")
		}
	}
	for _, one := range c.list(f["include"]) {
		parsed.reasoning = parsed.reasoning || c.text(one) == "reasoning.encrypted_content"
	}
	for _, tool := range c.list(f["tools"]) {
		t := c.object(tool, "type", "name", "description", "parameters", "strict", "allowed_callers", "async", "defer_loading", "output_schema")
		if kind := c.text(c.need(t["type"])); c.err == nil && kind != "function" {
			c.invalid(t["type"], fmt.Sprintf("This server does not support tools of type '%s'.", kind))
		}
		r.Tools = append(r.Tools, readFunction(c, t))
	}
	r.MustCall = readChoice(c, f["tool_choice"], r.Tools)
	readInput(c, f["input"], r)
	return parsed
}

// readInput reads the conversation: a text, or items. Each call has an output, and each output
// has a call before it.
func readInput(c *checker, input field, r *model.Request) {
	if c.need(input).kind() == '"' {
		r.Messages = []model.Message{{Role: model.RoleUser, Text: c.text(input)}}
		return
	}
	list := c.list(input)
	if c.err == nil && len(list) == 0 {
		c.fail(refuseParameter("input", "empty_array", "Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty array instead."))
	}
	var missing missingCalls
	var kept []json.RawMessage
	for _, raw := range list {
		var kind struct{ Type, Role string }
		if json.Unmarshal(raw.raw, &kind) != nil {
			c.fail(c.d.wrongType(raw.path, "object", raw.raw))
		}
		if c.err != nil {
			return
		}
		switch {
		case kind.Type == "message" || kind.Type == "" && kind.Role != "":
			readInputMessage(c, raw, r)
		case kind.Type == "function_call":
			call := readInputCall(c, raw)
			missing = append(missing, call.ID)
			m := answerOf(r)
			m.Calls = append(m.Calls, call)
		case kind.Type == "function_call_output":
			readOutput(c, raw, r, &missing)
		case kind.Type == "reasoning":
			readReasoning(c, raw)
			kept = append(kept, raw.raw)
			continue
		default:
			c.invalid(field{path: c.d.child(raw.path, "type")}, fmt.Sprintf("Invalid value: '%s'.", kind.Type))
		}
		if c.err == nil && len(kept) > 0 && len(r.Messages) > 0 {
			r.Messages[len(r.Messages)-1].Opaque, kept = encode(kept), nil
		}
	}
	if c.err == nil && len(missing) > 0 {
		c.fail(refuseParameter("input", "", fmt.Sprintf("No tool output found for function call %s.", missing[0])))
	}
	if c.err == nil && len(kept) > 0 {
		c.fail(refuseParameter("input", "", "Item of type 'reasoning' was provided without its required following item."))
	}
}

// answerOf returns the assistant's message that an item belongs to: the last one, or a new one.
func answerOf(r *model.Request) *model.Message {
	if n := len(r.Messages); n == 0 || r.Messages[n-1].Role != model.RoleAssistant {
		r.Messages = append(r.Messages, model.Message{Role: model.RoleAssistant})
	}
	return &r.Messages[len(r.Messages)-1]
}

func readInputMessage(c *checker, raw field, r *model.Request) {
	f := c.object(raw, "type", "role", "content", "id", "status", "phase")
	role := c.text(c.need(f["role"]))
	part := "input_text"
	if role == "assistant" {
		part = "output_text"
	}
	text, images := readInputContent(c, f["content"], part)
	switch role {
	case "system", "developer":
		r.System = strings.TrimPrefix(r.System+"\n"+text, "\n")
	case "user":
		r.Messages = append(r.Messages, model.Message{Role: model.RoleUser, Text: text, Images: images})
	case "assistant":
		r.Messages = append(r.Messages, model.Message{Role: model.RoleAssistant, Text: text})
	default:
		if c.err == nil {
			c.invalid(f["role"], fmt.Sprintf("Invalid value: '%s'. Supported values are: 'assistant', 'system', 'developer', and 'user'.", role))
		}
	}
}

// readInputContent reads a text, or parts of which those with a text have the type textPart.
func readInputContent(c *checker, content field, textPart string) (text string, images []model.Image) {
	if c.need(content).kind() != '[' {
		return c.text(content), nil
	}
	for _, raw := range c.list(content) {
		f := c.object(raw, "type", "text", "image_url", "detail", "annotations", "logprobs", "refusal", "file_id", "prompt_cache_breakpoint")
		switch kind := c.text(c.need(f["type"])); {
		case kind == textPart:
			text += c.text(c.need(f["text"]))
		case kind == "refusal" && textPart == "output_text":
			text += c.text(c.need(f["refusal"]))
		case kind == "input_image" && textPart == "input_text":
			images = append(images, readDataURL(c, f["image_url"]))
		default:
			if c.err == nil {
				c.invalid(f["type"], fmt.Sprintf("Invalid value: '%s'. Supported values are: '%s'.", kind, textPart))
			}
		}
	}
	return text, images
}

func readInputCall(c *checker, raw field) model.ToolCall {
	f := c.object(raw, "type", "call_id", "name", "arguments", "id", "status", "namespace", "async", "caller")
	call := model.ToolCall{ID: c.text(c.need(f["call_id"])), Name: c.text(c.need(f["name"])), Arguments: c.text(c.need(f["arguments"]))}
	if c.err == nil && !isToolName(call.Name, 128) {
		c.invalid(f["name"], fmt.Sprintf("Invalid '%s': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", f["name"].path))
	}
	return call
}

func readOutput(c *checker, raw field, r *model.Request, missing *missingCalls) {
	f := c.object(raw, "type", "call_id", "output", "id", "status", "caller", "name", "namespace")
	m := model.Message{Role: model.RoleTool, CallID: c.text(c.need(f["call_id"]))}
	m.Text, m.Images = readInputContent(c, f["output"], "input_text")
	if c.err == nil && !missing.answer(m.CallID) {
		c.fail(refuseParameter("input", "", fmt.Sprintf("No tool call found for function call output with call_id %s.", m.CallID)))
	}
	r.Messages = append(r.Messages, m)
}

// readReasoning reads an item of reasoning, which must be one of this server's.
func readReasoning(c *checker, raw field) {
	f := c.object(raw, "type", "id", "summary", "content", "encrypted_content", "status")
	c.need(f["summary"])
	id, text := c.text(c.need(f["id"])), c.text(f["encrypted_content"])
	switch {
	case c.err != nil:
	case text == "":
		c.fail(&refusal{status: 404, kind: invalidRequest, param: "input", message: fmt.Sprintf(
			"Item with id '%s' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.", id)})
	case !strings.HasPrefix(text, encrypt("")[:4]):
		c.fail(refuseParameter("input", "invalid_encrypted_content", "The encrypted content could not be verified."))
	}
}

// encrypt stands for encryption and for signatures.
func encrypt(text string) string { return base64.StdEncoding.EncodeToString([]byte("script:" + text)) }

// outputOf returns the items of a response, with status.
func outputOf(c call, a answer, status string) []map[string]any {
	var items []map[string]any
	if a.turn.Thinking != "" {
		item := map[string]any{"id": "rs_" + c.id, "type": "reasoning", "summary": []any{map[string]any{"type": "summary_text", "text": a.turn.Thinking}}}
		if c.reasoning {
			item["encrypted_content"] = encrypt(a.turn.Thinking)
		}
		items = append(items, item)
	}
	if a.text != "" || len(a.calls) == 0 {
		part := map[string]any{"type": "output_text", "text": a.text, "annotations": []any{}, "logprobs": []any{}}
		if a.stop == model.StopRefusal {
			part = map[string]any{"type": "refusal", "refusal": a.text}
		}
		items = append(items, map[string]any{"id": "msg_" + c.id, "type": "message", "role": "assistant", "status": status, "content": []any{part}})
	}
	for i, call := range a.calls {
		items = append(items, map[string]any{
			"id": fmt.Sprintf("fc_%s_%d", c.id, i), "type": "function_call", "status": status, "call_id": call.ID, "name": call.Name, "arguments": call.Arguments,
		})
	}
	return items
}

func (p responsesProtocol) document(c call, a answer) any {
	status := "completed"
	if a.stop == model.StopLength {
		status = "incomplete"
	}
	return p.responseDocument(c, a, status)
}

func (responsesProtocol) responseDocument(c call, a answer, status string) map[string]any {
	d := map[string]any{
		"id": "resp_" + c.id, "object": "response", "created_at": created, "status": status, "error": nil, "incomplete_details": nil,
		"instructions": textOrNull(c.request.System), "max_output_tokens": nil, "model": c.model, "output": []map[string]any{},
		"parallel_tool_calls": true, "previous_response_id": nil, "reasoning": map[string]any{"effort": nil, "summary": nil}, "store": false,
		"temperature": 1.0, "text": map[string]any{"format": map[string]any{"type": "text"}}, "tool_choice": "auto", "tools": []any{},
		"top_p": 1.0, "truncation": "disabled", "usage": nil, "user": nil, "metadata": map[string]any{},
	}
	if status == "in_progress" {
		return d
	}
	d["output"] = outputOf(c, a, status)
	d["usage"] = map[string]any{
		"input_tokens": a.usage.Input, "input_tokens_details": map[string]any{"cached_tokens": a.usage.Cached},
		"output_tokens": a.usage.Output, "output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": a.usage.Input + a.usage.Output,
	}
	if status == "incomplete" {
		d["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	}
	return d
}

// eventList numbers the events of a response.
type eventList struct{ list []event }

func (l *eventList) add(name string, data map[string]any) {
	data["type"], data["sequence_number"] = name, len(l.list)
	l.list = append(l.list, event{name, data})
}

func (p responsesProtocol) events(c call, a answer) (open, rest []event) {
	l := &eventList{}
	for _, name := range []string{"response.created", "response.in_progress"} {
		l.add(name, map[string]any{"response": p.responseDocument(c, a, "in_progress")})
	}
	said := 0
	for i, item := range outputOf(c, a, "completed") {
		switch item["type"] {
		case "message":
			l.addMessage(i, item, a)
			said = len(l.list) - 3 // without the events that end the message
		case "function_call":
			l.addCall(i, item)
		default:
			l.add("response.output_item.added", map[string]any{"output_index": i, "item": item})
			l.add("response.output_item.done", map[string]any{"output_index": i, "item": item})
		}
	}
	document := p.document(c, a)
	last := "response.completed"
	if a.stop == model.StopLength {
		last = "response.incomplete"
	}
	l.add(last, map[string]any{"response": document})
	return slices.Clone(l.list[:said]), l.list[said:]
}

func (l *eventList) addMessage(i int, item map[string]any, a answer) {
	id := item["id"]
	begun := map[string]any{"id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": []any{}}
	l.add("response.output_item.added", map[string]any{"output_index": i, "item": begun})
	kind, name, full := "output_text", "text", item["content"].([]any)[0] //nolint:errcheck,forcetypeassert // outputOf made it
	empty := map[string]any{"type": "output_text", "text": "", "annotations": []any{}, "logprobs": []any{}}
	if a.stop == model.StopRefusal {
		kind, name, empty = "refusal", "refusal", map[string]any{"type": "refusal", "refusal": ""}
	}
	place := func(more map[string]any) map[string]any {
		more["item_id"], more["output_index"], more["content_index"] = id, i, 0
		return more
	}
	l.add("response.content_part.added", place(map[string]any{"part": empty}))
	for _, word := range words(a.text) {
		l.add("response."+kind+".delta", place(map[string]any{"delta": word, "logprobs": []any{}}))
	}
	l.add("response."+kind+".done", place(map[string]any{name: a.text, "logprobs": []any{}}))
	l.add("response.content_part.done", place(map[string]any{"part": full}))
	l.add("response.output_item.done", map[string]any{"output_index": i, "item": item})
}

func (l *eventList) addCall(i int, item map[string]any) {
	begun := maps.Clone(item)
	begun["arguments"], begun["status"] = "", "in_progress"
	l.add("response.output_item.added", map[string]any{"output_index": i, "item": begun})
	arguments, _ := item["arguments"].(string)
	for _, word := range words(arguments) {
		l.add("response.function_call_arguments.delta", map[string]any{"item_id": item["id"], "output_index": i, "delta": word})
	}
	l.add("response.function_call_arguments.done", map[string]any{"item_id": item["id"], "output_index": i, "name": item["name"], "arguments": arguments})
	l.add("response.output_item.done", map[string]any{"output_index": i, "item": item})
}

func (responsesProtocol) failed(r *refusal) event {
	code := r.code
	if code == "" {
		code = r.kind
	}
	return event{"error", map[string]any{"type": "error", "code": code, "message": r.message, "param": textOrNull(r.param), "sequence_number": 1000}}
}
