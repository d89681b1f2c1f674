// Package toolbox serves the toolbox API of Daytona for sandboxes of the server: commands,
// sessions, terminals, interpreters, files, git and what else Daytona's clients do inside a
// sandbox. The paths of a sandbox are below /toolbox/SANDBOX, and for clients before version
// 0.120 below /api/toolbox/SANDBOX/toolbox.
//
// A request uses the sandbox through the manager, like all other front ends, so activity,
// audit, limits and the screen of commands hold. A request does not start a stopped sandbox
// unless the sandbox's policy does so: it gets status 400, as from Daytona.
//
// Sessions, terminals, language servers and interpreter contexts belong to the sandbox's processes:
// they continue after a pause, and end when it stops. A pause ends the connections of clients.
package toolbox
