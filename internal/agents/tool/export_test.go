package tool

import "time"

// SetKernelRest says how long kernels other than the main ones live without a call.
func SetKernelRest(s *Session, rest time.Duration) { s.kernels.idleTimeout = rest }
