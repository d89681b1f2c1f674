package script

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// maxQuoted bounds what an error repeats of a conversation, in bytes.
const maxQuoted = 500

// check reports what a request lacks.
func (e Expect) check(r model.Request) error {
	last := lastOf(r.Messages)
	texts := []struct {
		name, pattern string
		in            []string
		not           bool
	}{
		{name: "last", pattern: e.Last, in: []string{last.Text}},
		{name: "not", pattern: e.Not, in: []string{last.Text}, not: true},
		{name: "any", pattern: e.Any, in: textsOf(r.Messages)},
		{name: "system", pattern: e.System, in: []string{r.System}},
	}
	for _, t := range texts {
		if t.pattern == "" {
			continue
		}
		if matchesAny(t.pattern, t.in) == t.not {
			verb := "does not match"
			if t.not {
				verb = "matches"
			}
			return fmt.Errorf("expect.%s: the pattern %q %s %q", t.name, t.pattern, verb, textlen.Shorten(strings.Join(t.in, "\n"), maxQuoted))
		}
	}
	if e.Role != "" && last.Role != e.Role {
		return fmt.Errorf("expect.role: the last message is of role %q, want %q", last.Role, e.Role)
	}
	if len(last.Images) < e.Images {
		return fmt.Errorf("expect.images: the last message has %d images, want at least %d", len(last.Images), e.Images)
	}
	return e.checkTools(r.Tools)
}

func (e Expect) checkTools(tools []model.Tool) error {
	offered := map[string]bool{}
	for _, t := range tools {
		offered[t.Name] = true
	}
	for _, name := range e.Tools {
		if !offered[name] {
			return fmt.Errorf("expect.tools: the tool %q is not offered, but %q are", name, slices.Sorted(maps.Keys(offered)))
		}
	}
	return nil
}

// lastOf returns the last message. Results of calls at the end count as one.
func lastOf(messages []model.Message) model.Message {
	if len(messages) == 0 {
		return model.Message{}
	}
	last := messages[len(messages)-1]
	if last.Role != model.RoleTool {
		return last
	}
	all := model.Message{Role: model.RoleTool}
	var texts []string
	for _, m := range slices.Backward(messages) {
		if m.Role != model.RoleTool {
			break
		}
		texts, all.Images = append(texts, m.Text), append(all.Images, m.Images...)
	}
	slices.Reverse(texts)
	all.Text = strings.Join(texts, "\n")
	return all
}

func textsOf(messages []model.Message) []string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = m.Text
	}
	return texts
}

// matchesAny reports whether a pattern, which has been checked, matches one of some texts.
func matchesAny(pattern string, texts []string) bool {
	re, err := regexp.Compile(pattern)
	return err == nil && slices.ContainsFunc(texts, re.MatchString)
}
