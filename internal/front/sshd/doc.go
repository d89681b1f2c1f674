// Package sshd lets people and programs into sandboxes by SSH: the user name is the ID of
// a sandbox. A session is a shell, a command or SFTP in it; a forwarded connection goes to
// a port of its loopback interface. There is nothing else: no forwarding to anywhere else
// or back, no agent, no X11.
//
// Who may enter is the business of sshkey. A connection holds its sandbox (manager.Use),
// so it is in use until the connection has carried nothing for a while; when the sandbox is
// taken away, the connection says why and ends.
package sshd
