package tool

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Words that choose tools, beside the names of categories and of tools.
const (
	// ChooseDefault is the default set: what a model needs for most work, in a list that costs
	// it little. Other tools do the same in other ways, or what a shell command does too.
	ChooseDefault = "default"
	// ChooseAll is every tool.
	ChooseAll = "all"
)

// defaultTools returns the names of the default set.
func defaultTools() []string {
	return []string{
		"file_read", "file_write", "file_edit", "file_list", "glob", "grep",
		"shell_exec", "shell_view", "shell_write", "shell_wait", "shell_kill",
		"git_clone", "http_request", "env_set", "sandbox_context", "python_exec", "pip_install", "javascript_execute",
		"browser_open", "browser_state", "browser_screenshot", "browser_click", "browser_fill", "browser_press", "browser_scroll",
	}
}

// Exists reports whether there is a tool of a name or alias, offered or not.
func Exists(name string) bool {
	return slices.ContainsFunc(allTools(), func(t Tool) bool { return t.Name == name || slices.Contains(t.Aliases, name) })
}

// CheckChoice refuses words that Choose does not know. Invalid.
func CheckChoice(words []string) error {
	_, err := Choose(nil, words...)
	return err
}

// Choose returns a registry of the tools that any of the words names: ChooseDefault,
// ChooseAll, a category, or a tool. Without words it is the default set.
//
// Invalid: a word names nothing.
func Choose(audit func(Call), words ...string) (*Registry, error) {
	if len(words) == 0 {
		words = []string{ChooseDefault}
	}
	wanted := map[string]bool{}
	for _, word := range words {
		names := namesFor(word)
		if len(names) == 0 {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "unknown tool or category %.100q", word),
				"use "+ChooseDefault+", "+ChooseAll+", the name of a tool, or a category: "+strings.Join(categoryNames(), ", "))
		}
		for _, name := range names {
			wanted[name] = true
		}
	}
	return newRegistry(audit, func(t Tool) bool { return wanted[t.Name] })
}

// namesFor returns the names of the tools that a word chooses.
func namesFor(word string) []string {
	if word == ChooseDefault {
		return defaultTools()
	}
	var names []string
	for _, t := range allTools() {
		if word == ChooseAll || word == string(t.Category) || word == t.Name || slices.Contains(t.Aliases, word) {
			names = append(names, t.Name)
		}
	}
	return names
}

// IsDefault reports whether a tool is of the default set.
func (t Tool) IsDefault() bool { return slices.Contains(defaultTools(), t.Name) }

// hiddenNames matches the names of tools that are not offered, nil if there are none. Names of
// one word are left out: they are words of other meanings too.
func hiddenNames(offered func(Tool) bool) *regexp.Regexp {
	var names []string
	for _, t := range allTools() {
		if offered(t) {
			continue
		}
		for _, name := range append([]string{t.Name}, t.Aliases...) {
			if strings.Contains(name, "_") {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return regexp.MustCompile(`\b(?:` + strings.Join(names, "|") + `)\b`)
}

// namesHidden reports whether a text names a tool that is not offered.
func (r *Registry) namesHidden(text string) bool {
	return r.hidden != nil && r.hidden.MatchString(text)
}

// withoutHidden returns a description without the sentences and clauses that name tools which
// are not offered: a model would call them.
func (r *Registry) withoutHidden(text string) string {
	if !r.namesHidden(text) {
		return text
	}
	var kept []string
	for sentence := range strings.SplitSeq(strings.TrimSuffix(text, "."), ". ") {
		clauses := slices.DeleteFunc(strings.Split(sentence, "; "), r.namesHidden)
		if len(clauses) > 0 {
			kept = append(kept, strings.Join(clauses, "; "))
		}
	}
	return strings.Join(kept, ". ") + "."
}

type registryKey struct{}

// firstAllowed returns the first text that names no tool which this call's client is not offered, ""
// if there is none.
func firstAllowed(ctx context.Context, texts ...string) string {
	r, ok := ctx.Value(registryKey{}).(*Registry)
	for _, text := range texts {
		if !ok || !r.namesHidden(text) {
			return text
		}
	}
	return ""
}
