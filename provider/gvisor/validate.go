package gvisor

import "github.com/sandpit-dev/sandpit"

// validateSpec refuses what can never work, before anything is made.
func validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return validateNetwork(s.Network)
}
