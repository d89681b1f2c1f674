// Package e2b serves the control plane of E2B's API, with which E2B's clients create, find
// and delete sandboxes, templates, snapshots and volumes. For commands and files, clients
// reach the guest through the preview proxy. There is one type of handlers for each
// resource.
//
// The package stores nothing about sandboxes. What only this API needs to know about a
// sandbox is in one of the sandbox's labels.
package e2b
