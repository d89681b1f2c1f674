package gvisor

import "github.com/sandpit-dev/sandpit"

// validateSpec returns an error for a spec that can never work.
func validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return validateNetwork(s.Network)
}
