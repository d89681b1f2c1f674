package config

import (
	"fmt"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

var toolPattern = pattern.New(`^[a-z][a-z0-9_]{0,63}$`)

// setTools reads a list of words that choose tools.
func setTools(field *[]string, v any) error {
	list, ok := listOf(v)
	if !ok {
		return fmt.Errorf("%s is not a list of tools; use for example [\"default\", \"git\"]", shortValue(v))
	}
	for _, word := range list {
		if !toolPattern().MatchString(word) {
			return fmt.Errorf("%s is not the name of a tool or category; use for example default, all or git", quoteText(word))
		}
	}
	*field = list
	return nil
}
