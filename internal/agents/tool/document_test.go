package tool_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

var update = flag.Bool("update", false, "write docs/tools.md")

const page = "../../../docs/tools.md"

// TestDocument compares docs/tools.md with what there is.
func TestDocument(t *testing.T) {
	t.Parallel()
	want := document(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Errorf("docs/tools.md is not what the tools are (%v); go test ./internal/agents/tool -run TestDocument -update writes it", err)
	}
}

// TestDefaultSetDocument compares what docs/mcp.md says of the default set.
func TestDefaultSetDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	some, err := tool.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("the default set of %d tools", len(some.Tools())); !strings.Contains(string(text), want) {
		t.Errorf("docs/mcp.md does not say %q", want)
	}
}

func document(t *testing.T) string {
	t.Helper()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	some, err := tool.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "# Tools\n\nThe tools that agents can call in a sandbox. [mcp.md](mcp.md) describes how to connect an agent. A test writes this page.\n\n"+
		"MCP clients see the %d marked tools by default; `--tools` or `?tools=` selects others. A model reads the list in\n"+
		"each conversation: %s for the default set, %s for all %d tools.\n",
		len(some.Tools()), listSize(t, some), listSize(t, all), len(all.Tools()))
	var category tool.Category
	for _, d := range all.Tools() {
		if d.Category != category {
			category = d.Category
			fmt.Fprintf(&b, "\n## %s\n\n| tool | default | what it does | input |\n| --- | --- | --- | --- |\n", category)
		}
		mark := ""
		if d.IsDefault() {
			mark = "x"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, mark, d.Description, strings.Join(inputs(t, d), "; "))
	}
	return b.String()
}

// listSize is how large the list of tools is that a client gets. A token of English and JSON
// has about four bytes.
func listSize(t *testing.T, r *tool.Registry) string {
	t.Helper()
	size := 0
	for _, d := range r.Tools() {
		data, err := json.Marshal(map[string]any{"name": d.Name, "title": d.Title, "description": d.Description, "inputSchema": d.Schema(), "annotations": map[string]any{
			"title": d.Title, "readOnlyHint": d.Hints.ReadOnly, "idempotentHint": d.Hints.Idempotent, "destructiveHint": d.Hints.Destructive, "openWorldHint": d.Hints.OpenWorld,
		}})
		if err != nil {
			t.Fatal(err)
		}
		size += len(data) + 1
	}
	const kib, token = 1 << 10, 4
	return fmt.Sprintf("%d KiB, about %d tokens,", (size+kib/2)/kib, (size/token+50)/100*100)
}

// inputs tells the fields of a tool's input, those that must be given first.
func inputs(t *testing.T, d tool.Tool) []string {
	t.Helper()
	var list []string
	schema := d.Schema()
	for _, name := range schema.PropertyOrder {
		p := schema.Properties[name]
		text := fmt.Sprintf("`%s` %s", name, p.Type)
		if slices.Contains(schema.Required, name) {
			text += ", required"
		}
		if len(p.Enum) > 0 {
			text += ", one of " + strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Enum), " ", ", "), "[]")
		}
		if value := strings.Trim(string(p.Default), `"`); value != "" && value != "false" && json.Valid(p.Default) {
			text += ", default " + value
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		return []string{"none"}
	}
	return list
}
