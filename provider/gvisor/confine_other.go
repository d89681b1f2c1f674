//go:build !amd64

package gvisor

import "golang.org/x/sys/unix"

// oldCalls are those of engineDenials that only this architecture has.
func oldCalls() []uintptr { return nil }

// architectureCalls are those of reaperCalls that only this architecture has.
func architectureCalls() []uintptr { return []uintptr{unix.SYS_FSTATAT} }
