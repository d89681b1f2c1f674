// Package gvisor makes sandboxes with a gVisor kernel that is linked into this
// very binary. It needs no container engine, no KVM and no root.
//
// Three processes stand behind every sandbox, all of them this binary:
//
//   - The reaper keeps the privileges of the user who started it and does
//     nothing but watch: when the program that owns the engine is gone, or the
//     engine is, it removes what is left of both.
//   - The engine is the first process of its own user, PID, mount, network,
//     IPC and UTS namespaces. It has no privilege outside of them, and it
//     drives gVisor. When it dies, the machine's kernel ends every process in
//     its PID namespace: no sandbox outlives its engine.
//   - The kernel process of each sandbox (and a file server, the gofer, when
//     the sandbox sees directories of the machine) is a child of the engine.
//
// The provider talks to its engine over a socket in the runtime directory, one
// connection for each call, so that other programs of the same user can find
// and reach the same sandboxes.
package gvisor
