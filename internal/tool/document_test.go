package tool_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/tool"
)

var update = flag.Bool("update", false, "write docs/tools.md")

const page = "../../docs/tools.md"

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
		t.Errorf("docs/tools.md is not what the tools are (%v); go test ./internal/tool -run TestDocument -update writes it", err)
	}
}

func document(t *testing.T) string {
	t.Helper()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Tools\n\nWhat agents can do in a sandbox; [mcp.md](mcp.md) tells how they get at it. This page is written by a test.\n")
	var category tool.Category
	for _, d := range all.Tools() {
		if d.Category != category {
			category = d.Category
			fmt.Fprintf(&b, "\n## %s\n\n| tool | what it does | input |\n| --- | --- | --- |\n", category)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.Name, d.Description, strings.Join(inputs(t, d), "; "))
	}
	return b.String()
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
