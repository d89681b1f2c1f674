// Package gvisor runs sandboxes with a gVisor kernel that is linked into this binary. It needs no
// container engine, no KVM and no root.
//
// Three kinds of processes, all of them this binary, run the sandboxes of a provider:
//
//   - The reaper has the privileges of the user that started it. It watches: when the program that
//     owns the engine ends, or the engine does, it removes what remains of both.
//   - The engine is the first process in its own user, PID, mount, network, IPC and UTS
//     namespaces. It has no privileges outside, and drives gVisor. When it ends, the machine's
//     kernel ends every process in its PID namespace: no sandbox outlives its engine.
//   - The kernel process of each sandbox, and a file server (the gofer) if the sandbox sees
//     directories of the machine, are children of the engine.
//
// Online sandboxes also have an egress gateway each, and a dialer for all of an engine.
//
// The provider makes requests to its engine over a socket in the runtime directory, one connection
// for each call. So other programs of the same user can find and reach the same sandboxes.
//
// A sandbox that does not run is a saved state on disk: see package savedstate. Control groups,
// the confinement of processes and the conversion of layers are in packages of their own.
package gvisor
