package script

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// messagesProtocol is Anthropic's messages.
type messagesProtocol struct{ anthropic }

// maxCacheMarks is how many blocks may ask for a cache.
const maxCacheMarks = 4

var messagesParameters = []string{
	"model", "messages", "max_tokens", "cache_control", "container", "context_management", "diagnostics", "inference_geo", "mcp_servers",
	"metadata", "output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream", "system", "thinking", "tool_choice",
	"tools", "user_profile_id", "workspace_id",
}

// samplingParameters are those that only the old version has.
var samplingParameters = []string{"temperature", "top_k", "top_p"}

func (messagesProtocol) parse(c *checker, body field) call {
	known := messagesParameters
	if c.version != newVersion {
		known = slices.Concat(known, samplingParameters)
	}
	f := c.object(body, known...)
	if c.err != nil {
		return call{}
	}
	parsed := call{model: c.text(c.need(f["model"])), stream: c.boolean(f["stream"])}
	r := &parsed.request
	r.MaxTokens = c.integer(c.need(f["max_tokens"]))
	r.Temperature = c.temperature(f["temperature"], 1)
	marks := 0
	r.System = readSystem(c, f["system"], &marks)
	names := map[string]bool{}
	for _, raw := range c.list(f["tools"]) {
		t := readTool(c, raw, &marks)
		if names[t.Name] && c.err == nil {
			c.fail(c.d.invalid("tools", "Tool names must be unique."))
		}
		names[t.Name] = true
		r.Tools = append(r.Tools, t)
	}
	r.MustCall = readToolChoice(c, f["tool_choice"], r.Tools)
	readMessages(c, f["messages"], r, &marks)
	if c.err == nil && marks > maxCacheMarks {
		c.fail(c.d.invalid("", fmt.Sprintf("A maximum of %d blocks with cache_control may be provided. Found %d.", maxCacheMarks, marks)))
	}
	return parsed
}

func readSystem(c *checker, system field, marks *int) string {
	if system.kind() != '[' {
		return c.text(system)
	}
	var texts []string
	for _, raw := range c.list(system) {
		f := c.object(raw, "type", "text", "cache_control", "citations")
		readCacheMark(c, f["cache_control"], marks)
		text := c.text(c.need(f["text"]))
		if c.err == nil && text == "" {
			c.fail(c.d.invalid("system", "text content blocks must be non-empty"))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}

func readCacheMark(c *checker, mark field, marks *int) {
	if !mark.isSet() {
		return
	}
	*marks++
	f := c.object(mark, "type", "ttl")
	if kind := c.text(c.need(f["type"])); c.err == nil && kind != "ephemeral" {
		c.invalid(f["type"], "Input should be 'ephemeral'")
	}
}

func readTool(c *checker, raw field, marks *int) model.Tool {
	f := c.object(raw, "type", "name", "description", "input_schema", "cache_control", "strict", "eager_input_streaming", "allowed_callers", "defer_loading", "input_examples")
	readCacheMark(c, f["cache_control"], marks)
	t := model.Tool{Name: c.text(c.need(f["name"])), Description: c.text(f["description"]), Schema: c.need(f["input_schema"]).raw}
	custom := raw.path + ".custom"
	switch {
	case c.err != nil:
	case f["type"].isSet() && c.text(f["type"]) != "custom":
		c.invalid(f["type"], "This server does not support tools of the vendor.")
	case !isToolName(t.Name, 128):
		c.fail(c.d.invalid(custom+".name", "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"))
	case f["input_schema"].kind() != '{':
		c.fail(c.d.invalid(custom+".input_schema", "Input should be a valid dictionary"))
	case typeOf(t.Schema) == "":
		c.fail(c.d.missing(custom + ".input_schema.type"))
	case typeOf(t.Schema) != "object":
		c.fail(c.d.invalid(custom+".input_schema.type", "Input should be 'object'"))
	}
	return t
}

func readToolChoice(c *checker, choice field, tools []model.Tool) (must bool) {
	if !choice.isSet() {
		return false
	}
	f := c.object(choice, "type", "name", "disable_parallel_tool_use")
	kind := c.text(c.need(f["type"]))
	switch {
	case c.err != nil:
	case len(tools) == 0:
		c.invalid(choice, "tool_choice may only be specified while providing tools.")
	case kind == "any":
		return true
	case kind == "tool":
		name := c.text(c.need(f["name"]))
		if c.err == nil && !slices.ContainsFunc(tools, func(t model.Tool) bool { return t.Name == name }) {
			c.invalid(choice, fmt.Sprintf("Tool '%s' not found in provided tools", name))
		}
		return true
	case kind != "auto" && kind != "none":
		c.invalid(choice, fmt.Sprintf("Input tag '%s' found using 'type' does not match any of the expected tags: 'any', 'auto', 'none', 'tool'", kind))
	}
	return false
}

// conversation reads messages and checks their order.
type conversation struct {
	*checker
	r       *model.Request
	marks   *int
	missing missingCalls // calls of the message before
	seen    map[string]bool
}

// readMessages reads the conversation. The API joins messages of one role that follow each other.
func readMessages(c *checker, messages field, r *model.Request, marks *int) {
	list := c.list(c.need(messages))
	if c.err == nil && len(list) == 0 {
		c.fail(c.d.invalid("messages", "at least one message is required"))
	}
	v := conversation{checker: c, r: r, marks: marks, seen: map[string]bool{}}
	before := ""
	for i, raw := range list {
		f := c.object(raw, "role", "content")
		role := c.text(c.need(f["role"]))
		if c.err == nil && role != "user" && role != "assistant" {
			c.invalid(f["role"], "Input should be 'user' or 'assistant'")
		}
		if c.err == nil && i == 0 && role != "user" {
			c.fail(c.d.invalid("messages", `first message must use the "user" role`))
		}
		if c.err == nil && role == "assistant" && before != "assistant" {
			v.missing = nil
		}
		v.readMessage(role, f["content"], i, i == len(list)-1)
		if c.err != nil {
			return
		}
		before = role
	}
	if len(v.missing) > 0 && before == "assistant" {
		v.refuseMissing(len(list) - 1)
	}
}

// refuseMissing complains about the calls of message i.
func (v *conversation) refuseMissing(i int) {
	v.fail(v.d.invalid(fmt.Sprintf("messages.%d", i), "`tool_use` ids were found without `tool_result` blocks immediately after: "+
		strings.Join(v.missing, ", ")+". Each `tool_use` block must have a corresponding `tool_result` block in the next message."))
}

// readMessage reads message i.
func (v *conversation) readMessage(role string, content field, i int, last bool) {
	if v.err != nil {
		return
	}
	blocks := []field{}
	if v.need(content).kind() == '[' {
		blocks = v.list(content)
	} else if text := v.text(content); v.err == nil && text != "" {
		blocks = []field{{encode(map[string]string{"type": "text", "text": text}), v.d.item(content.path, 0)}}
	}
	if v.err == nil && len(blocks) == 0 && (role == "user" || !last) {
		v.fail(v.d.invalid(fmt.Sprintf("messages.%d", i), "all messages must have non-empty content except for the optional final assistant message"))
	}
	if role == "assistant" {
		v.readAnswer(blocks, last)
		return
	}
	v.readQuestion(blocks, i)
}

func (v *conversation) readAnswer(blocks []field, last bool) {
	m := model.Message{Role: model.RoleAssistant}
	var kept []json.RawMessage
	for _, raw := range blocks {
		switch kind := v.kindOf(raw); kind {
		case "text":
			m.Text += v.readText(raw)
		case "tool_use":
			m.Calls = append(m.Calls, v.readToolUse(raw))
		case "thinking", "redacted_thinking":
			v.readThinking(raw)
			kept = append(kept, raw.raw)
		default:
			v.unknownKind(raw, kind, "'redacted_thinking', 'text', 'thinking', 'tool_use'")
		}
		if v.err != nil {
			return
		}
	}
	if last && m.Text != strings.TrimRight(m.Text, " \t\r\n") {
		v.fail(v.d.invalid("messages", "final assistant content cannot end with trailing whitespace"))
	}
	if kept != nil {
		m.Opaque = encode(kept)
	}
	v.r.Messages = append(v.r.Messages, m)
}

func (v *conversation) readQuestion(blocks []field, i int) {
	m := model.Message{Role: model.RoleUser}
	for _, raw := range blocks {
		kind := v.kindOf(raw)
		if v.err == nil && kind != "tool_result" && len(v.missing) > 0 {
			v.refuseMissing(i - 1)
		}
		switch kind {
		case "text":
			text := v.readText(raw)
			if m.Text != "" {
				text = "\n" + text
			}
			m.Text += text
		case "image":
			m.Images = append(m.Images, v.readImage(raw))
		case "tool_result":
			v.readToolResult(raw, i)
		default:
			v.unknownKind(raw, kind, "'document', 'image', 'search_result', 'text', 'tool_result'")
		}
		if v.err != nil {
			return
		}
	}
	if len(v.missing) > 0 {
		v.refuseMissing(i - 1)
	}
	if m.Text != "" || len(m.Images) > 0 {
		v.r.Messages = append(v.r.Messages, m)
	}
}

func (v *conversation) kindOf(raw field) string {
	var kind struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw.raw, &kind) != nil || kind.Type == "" {
		v.fail(v.d.missing(v.d.child(raw.path, "type")))
	}
	return kind.Type
}

func (v *conversation) unknownKind(raw field, kind, known string) {
	v.fail(v.d.invalid(raw.path, fmt.Sprintf("Input tag '%s' found using 'type' does not match any of the expected tags: %s", kind, known)))
}

func (v *conversation) readText(raw field) string {
	raw.path += ".text"
	f := v.object(raw, "type", "text", "cache_control", "citations")
	readCacheMark(v.checker, f["cache_control"], v.marks)
	text := v.text(v.need(f["text"]))
	switch {
	case v.err != nil:
	case text == "":
		v.fail(v.d.invalid("messages", "text content blocks must be non-empty"))
	case strings.TrimSpace(text) == "":
		v.fail(v.d.invalid("messages", "text content blocks must contain non-whitespace text"))
	}
	return text
}

func (v *conversation) readImage(raw field) model.Image {
	raw.path += ".image"
	f := v.object(raw, "type", "source", "cache_control", "transformations")
	readCacheMark(v.checker, f["cache_control"], v.marks)
	source := v.need(f["source"])
	source.path += ".base64"
	s := v.object(source, "type", "media_type", "data")
	if kind := v.text(v.need(s["type"])); v.err == nil && kind != "base64" {
		v.invalid(s["type"], "This server supports images of type 'base64' only.")
	}
	kind, encoded := v.text(v.need(s["media_type"])), v.text(v.need(s["data"]))
	if v.err != nil {
		return model.Image{}
	}
	image, err := decodeImage(encoded)
	switch {
	case !slices.Contains(imageTypes, kind):
		v.invalid(s["media_type"], "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'")
	case err != nil && err != errNoImage: //nolint:errorlint // decodeImage returns it as it is
		v.invalid(s["data"], "Invalid base64 data")
	case err != nil:
		v.invalid(field{path: "messages"}, "Could not process image")
	case image.MediaType != kind:
		v.invalid(s["data"], "Image does not match the provided media type "+kind)
	}
	return image
}

func (v *conversation) readToolUse(raw field) model.ToolCall {
	raw.path += ".tool_use"
	f := v.object(raw, "type", "id", "name", "input", "cache_control", "caller", "toolset_name")
	readCacheMark(v.checker, f["cache_control"], v.marks)
	call := model.ToolCall{ID: v.text(v.need(f["id"])), Name: v.text(v.need(f["name"])), Arguments: string(v.need(f["input"]).raw)}
	switch {
	case v.err != nil:
	case !isToolName(call.ID, 256):
		v.invalid(f["id"], "String should match pattern '^[a-zA-Z0-9_-]+$'")
	case !isToolName(call.Name, 200):
		v.invalid(f["name"], "String should match pattern '^[a-zA-Z0-9_-]{1,200}$'")
	case f["input"].kind() != '{':
		v.invalid(f["input"], "Input should be a valid dictionary")
	case v.seen[call.ID]:
		v.fail(v.d.invalid("messages", "`tool_use` ids must be unique"))
	}
	v.seen[call.ID] = true
	v.missing = append(v.missing, call.ID)
	return call
}

func (v *conversation) readToolResult(raw field, i int) {
	path := raw.path
	raw.path += ".tool_result"
	f := v.object(raw, "type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name")
	readCacheMark(v.checker, f["cache_control"], v.marks)
	m := model.Message{Role: model.RoleTool, CallID: v.text(v.need(f["tool_use_id"])), Failed: v.boolean(f["is_error"])}
	if f["content"].kind() == '[' {
		for _, part := range v.list(f["content"]) {
			switch kind := v.kindOf(part); kind {
			case "text":
				m.Text += v.readText(part)
			case "image":
				m.Images = append(m.Images, v.readImage(part))
			default:
				v.unknownKind(part, kind, "'document', 'image', 'search_result', 'text'")
			}
		}
	} else {
		m.Text = v.text(f["content"])
	}
	if v.err == nil && m.Failed && m.Text == "" && len(m.Images) == 0 {
		v.fail(v.d.invalid(fmt.Sprintf("messages.%d.content", i), "content cannot be empty if `is_error` is true"))
	}
	if v.err == nil && !v.missing.answer(m.CallID) {
		v.fail(v.d.invalid(path, "unexpected `tool_use_id` found in `tool_result` blocks: "+m.CallID+
			". Each `tool_result` block must have a corresponding `tool_use` block in the previous message."))
	}
	v.r.Messages = append(v.r.Messages, m)
}

// readThinking reads a block of thinking, which must have this server's signature.
func (v *conversation) readThinking(raw field) {
	raw.path += ".thinking"
	f := v.object(raw, "type", "thinking", "signature")
	text, signature := v.text(v.need(f["thinking"])), v.text(v.need(f["signature"]))
	if v.err == nil && signature != encrypt(text) {
		v.fail(v.d.invalid(strings.TrimSuffix(raw.path, ".thinking"), "Invalid `signature` in `thinking` block"))
	}
}
