// Package sshd lets people and programs into sandboxes by SSH: the user name is the ID of
// a sandbox. A session is a shell, a command or SFTP in it; a forwarded connection goes to
// a port of its loopback interface. There is nothing else: no forwarding to anywhere else
// or back, no agent, no X11.
//
// Package sshkey decides about access. A connection uses its sandbox (manager.Use) until it
// has been idle for a while; when the sandbox is taken away, the connection reports why and
// ends.
package sshd
