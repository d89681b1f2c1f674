//go:build !amd64

package confine

// AllowCPUID does nothing: this architecture has no such instruction.
func AllowCPUID() error { return nil }
