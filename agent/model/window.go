package model

import "strings"

// windows are the windows of families of models, in tokens, the most specific name first.
var windows = []struct {
	prefix string
	tokens int
}{
	{"claude-", 200_000},
	{"gpt-5", 400_000},
	{"gpt-4.1", 1_047_576},
	{"gpt-4o", 128_000},
	{"gpt-4-turbo", 128_000},
	{"gpt-4", 8_192},
	{"gpt-3.5-turbo", 16_385},
	{"o1", 200_000},
	{"o3", 200_000},
	{"o4-mini", 200_000},
	{"deepseek-", 128_000},
}

// KnownWindow returns the window of a well-known family of models. 0: the name is not known.
func KnownWindow(name string) int {
	for _, w := range windows {
		if strings.HasPrefix(name, w.prefix) {
			return w.tokens
		}
	}
	return 0
}
