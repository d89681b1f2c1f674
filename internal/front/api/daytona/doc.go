// Package daytona serves the control API of Daytona, with which Daytona's clients create, find,
// change and delete sandboxes, snapshots and volumes. Commands and files are in the toolbox API,
// whose address each sandbox names. There is one type of handlers for each resource.
//
// The package stores nothing about sandboxes. What only this API needs to know about a sandbox
// is in one of the sandbox's labels.
//
// Requests that change a sandbox respond when the change is complete, or after answerTimeout
// with the state on the way; the change then continues. Clients poll, or listen to the events of
// a WebSocket.
package daytona
