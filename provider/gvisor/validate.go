package gvisor

import (
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
)

func baseName(p string) string { return filepath.Base(p) }

// validateSpec refuses what can never work, before anything is made.
func validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return validateNetwork(s.Network)
}
