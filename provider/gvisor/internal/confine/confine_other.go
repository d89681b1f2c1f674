//go:build !amd64

package confine

import "golang.org/x/sys/unix"

// oldCalls returns obsolete calls that only this architecture has.
func oldCalls() []uintptr { return nil }

// architectureCalls returns the calls of reaperCalls that only this architecture has.
func architectureCalls() []uintptr { return []uintptr{unix.SYS_FSTATAT} }
