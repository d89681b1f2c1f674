// Package e2b is the control plane of E2B's API: what their clients ask to make, find
// and end sandboxes. What happens inside they ask the guest, by way of the gateway.
//
// It holds no state. What the API knows of a sandbox that nobody else needs is in one
// of the sandbox's labels.
package e2b
