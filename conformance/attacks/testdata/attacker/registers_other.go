//go:build !amd64

package main

import "golang.org/x/sys/unix"

const (
	sysKexecFileLoad = 294
	sysUselib        = 86
	sysSysctl        = 156
)

// Calls that only older processors have.
var (
	oldCallsThatWait []uintptr
	forgottenCalls   map[string]uintptr
)

// These are about the registers and instructions of another processor.
func hardware(a *attempt)         { a.do("nothing here", unavailable) }
func hostileRegisters(a *attempt) { a.do("nothing here", unavailable) }
func injectFirst(a *attempt)      { a.do("nothing here", unavailable) }

func unavailable() error { return unix.ENOSYS }

func instructionAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){"instructions": hardware}
}
